"""What verbs print: rows, records, progress, requests."""
