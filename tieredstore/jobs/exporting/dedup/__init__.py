"""Deduplication: of the messages with one key, only the first is exported."""
