"""Cleaning: what has expired, and what a full disk takes, leaves log, queues and index."""
