"""All rows of the benchmark table, in order."""

from __future__ import annotations

from benchmarks.rows import flush, index, local, recovery, s3, s3_reads, tier

ROWS = (*local.ROWS, *flush.ROWS, *recovery.ROWS, *tier.ROWS, *index.ROWS)
S3_ROWS = (*s3.ROWS, *s3_reads.ROWS)
"""Rows that need a server of `localstack/`. They run only if they are named on the command line."""
