"""SQL92 filters: which messages an expression takes, by their properties or by all their fields."""
