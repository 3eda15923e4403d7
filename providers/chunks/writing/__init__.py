"""Writes at the end of segments of a chunk log."""
