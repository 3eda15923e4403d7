"""Reads planned ranges of queues in batches of bounded size, every record checked."""
