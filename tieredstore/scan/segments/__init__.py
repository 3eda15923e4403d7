"""Store times, read from the files of a queue."""
