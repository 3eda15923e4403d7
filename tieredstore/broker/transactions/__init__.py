"""Transactions: half messages, commit, rollback, and checks at producers."""
