"""The job `export`: messages of a tier as Parquet files, an Iceberg table or a Delta table. Each
run adds the new messages exactly once. The target stores the exported position of each queue
together with the data (`docs/jobs.md`)."""
