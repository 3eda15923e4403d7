"""All rows, in the order of the table."""

from __future__ import annotations

from benchmarks.rows import flush, index, local, recovery, s3, s3_reads, tier

ROWS = (*local.ROWS, *flush.ROWS, *recovery.ROWS, *tier.ROWS, *index.ROWS)
S3_ROWS = (*s3.ROWS, *s3_reads.ROWS)
"""They need a server of `localstack/`, and run when they are named."""
