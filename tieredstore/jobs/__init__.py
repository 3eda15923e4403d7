"""Jobs: work over a whole tier, cut into tasks that run on this machine or on a cluster.
`tieredstore.jobs.export(…)`, `verify(…)`, … are one call each (`api`). Each job has a package with
a function `run_…` that takes a `JobRun`. It plans, runs its tasks through a `Runner`, and commits
once. A journal records the finished steps, so that a killed job continues after the last one."""

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
