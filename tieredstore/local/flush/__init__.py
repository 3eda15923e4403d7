"""Flush of the store to disk, and the checkpoint of its progress."""
