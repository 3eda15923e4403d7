"""SQL queries over the topics of a tier, with DuckDB."""
