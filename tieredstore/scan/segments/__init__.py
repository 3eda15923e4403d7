"""Store times in the files of a queue."""
