"""The put path: verdicts, offsets, encoding and the append to the log."""
