"""The job `export`: messages of a tier as Parquet files, an Iceberg table or a Delta table. Each
run adds the messages that are new since the last run, exactly once. The target keeps the exported
position of each queue together with the data (`docs/jobs.md`)."""
