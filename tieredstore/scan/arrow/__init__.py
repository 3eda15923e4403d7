"""Messages of a tier as Arrow columns, and such columns as records again."""
