"""JSON bodies as columns: the schema that says which, and the decoding."""
