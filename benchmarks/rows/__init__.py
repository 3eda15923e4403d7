"""All rows, in the order of the table."""

from __future__ import annotations

from benchmarks.rows import index

ROWS = (*index.ROWS,)
