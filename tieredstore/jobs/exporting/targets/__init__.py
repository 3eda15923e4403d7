"""Targets of an export: plain Parquet, Iceberg, Delta."""
