"""Reads of what is in the tier: by offset through the read-ahead cache, by key, by time."""
