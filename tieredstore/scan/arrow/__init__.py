"""Conversion of a tier's messages to Arrow columns, and of Arrow columns to records."""
