"""Put path: queues and their offsets, refusals, encoding, and the append to the log."""
