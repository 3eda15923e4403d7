"""The broker: one process that serves RocketMQ's clients over a message store."""
