"""Writes at the end of segments."""
