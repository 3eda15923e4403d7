"""Looks for messages by key: what the index files name, and what they do not."""
