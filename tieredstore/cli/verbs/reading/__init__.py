"""Verbs that show what a tier holds."""
