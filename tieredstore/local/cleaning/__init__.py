"""Cleaning of log, queues and index: deletion of expired messages, and of the oldest messages on a
full disk."""
