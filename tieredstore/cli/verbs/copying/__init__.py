"""Verbs that take messages from one place to another."""
