"""Flushes the store to disk and records the progress in the checkpoint."""
