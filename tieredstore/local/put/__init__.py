"""Put path: queues and their offsets, rejections, encoding, and appends to the log."""
