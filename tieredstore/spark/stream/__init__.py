"""Streaming reads: micro-batches up to what is committed, each message once."""
