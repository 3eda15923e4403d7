"""SQL92 filters over the properties, or all fields, of messages."""
