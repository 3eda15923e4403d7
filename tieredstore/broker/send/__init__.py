"""Incoming messages: checks, automatic creation of topics, retries and dead letters."""
