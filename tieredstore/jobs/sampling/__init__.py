"""A small tier with messages that look real, for examples and first steps."""
