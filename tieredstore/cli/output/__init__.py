"""Output of verbs: rows, records and progress."""
