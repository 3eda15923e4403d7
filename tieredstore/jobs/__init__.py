"""Work over a whole tier, cut into tasks that run here or on a cluster.

`tieredstore.jobs.export(…)`, `verify(…)`, … are one call each (`api`). Below them a job is a
function `run_…` over a `JobRun`, in a room of its own: it plans, has its tasks done by a `Runner`,
and commits once. What was done is kept in a journal, so that a job that was killed goes on where it
was.
"""

from tieredstore.jobs.api import (
    backfill,
    compact_export,
    compact_index,
    copy,
    export,
    offload,
    rebuild_index,
    rebuild_metadata,
    report,
    restore,
    verify,
)

__all__ = [
    "backfill",
    "compact_export",
    "compact_index",
    "copy",
    "export",
    "offload",
    "rebuild_index",
    "rebuild_metadata",
    "report",
    "restore",
    "verify",
]
