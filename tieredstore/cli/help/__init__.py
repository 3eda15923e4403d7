"""Help: examples, manual page, completion and suggestions."""
