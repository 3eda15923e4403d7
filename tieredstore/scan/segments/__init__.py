"""Reads store times from the files of a queue."""
