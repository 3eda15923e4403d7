"""Small tier with realistic messages, for examples and first steps."""
