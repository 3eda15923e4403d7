"""Deduplication: only the first of several messages with the same key is exported."""
