"""Decisions of an operator about a tier: its topics, and the rate at which it is used."""
