"""Deduplication: only the first message with a key is exported."""
