"""Jobs: work over a whole tier, cut into tasks that run on this machine or on a cluster.
`tieredstore.jobs.export(…)`, `verify(…)`, … are one call each (`api`). Below them, each job has its
own package with a function `run_…` over a `JobRun`. The function plans, runs its tasks through a
`Runner`, and commits once. A journal records the finished steps, so that a killed job continues
after its last finished step."""

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
