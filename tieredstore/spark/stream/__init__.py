"""Streaming reads: micro-batches of committed messages. Each message is read once."""
