"""Cleaning of log, queues and index: deletes expired messages, and on a full disk the oldest
ones."""
