"""SQL over the topics of a tier, by DuckDB."""
