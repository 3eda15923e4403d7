"""Transactions: half messages, commits, rollbacks, and checks with producers."""
