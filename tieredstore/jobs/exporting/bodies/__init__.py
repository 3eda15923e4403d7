"""JSON bodies as columns: schema and decoder."""
