"""Consume queues: positions of each queue's messages, in order."""
