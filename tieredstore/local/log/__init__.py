"""Commit log: mapped files, their names, the end of the log, and checks of single records."""
