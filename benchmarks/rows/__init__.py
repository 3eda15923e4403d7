"""All rows, in the order of the table."""

from __future__ import annotations

from benchmarks.rows import index, local, tier

ROWS = (*local.ROWS, *tier.ROWS, *index.ROWS)
