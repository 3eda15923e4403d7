"""Verbs about the command itself: its configuration, profiles, completion, manual."""
