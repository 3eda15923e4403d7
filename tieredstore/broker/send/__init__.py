"""Incoming messages: checks, automatic topic creation, retries and dead letters."""
