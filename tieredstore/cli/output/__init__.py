"""Output of verbs: rows, records, progress."""
