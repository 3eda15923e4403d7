"""Reads of the tier: by offset through the read-ahead cache, by key, by time."""
