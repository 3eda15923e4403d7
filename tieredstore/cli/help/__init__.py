"""Help: examples, manual, completion, suggestions."""
