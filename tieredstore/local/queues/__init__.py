"""Consume queues: where the messages of each queue are, in order."""
