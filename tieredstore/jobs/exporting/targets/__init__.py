"""What an export writes to: plain Parquet, Iceberg, Delta."""
