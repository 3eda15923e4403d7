"""Of messages with one key, the first alone is exported."""
