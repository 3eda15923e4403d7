"""JSON bodies as columns: the schema and the decoding."""
