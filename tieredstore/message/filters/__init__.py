"""SQL92 filters on the properties, or all fields, of messages."""
