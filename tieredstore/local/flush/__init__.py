"""Bringing the store to disk, and the checkpoint that says how far that is done."""
