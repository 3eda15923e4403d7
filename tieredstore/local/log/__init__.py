"""Commit log: mapped files, their names, the tail, and checks of single records."""
