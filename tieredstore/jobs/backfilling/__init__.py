"""Backfill: a Parquet table becomes messages of a tier.

What is written, in which order and why: `docs/jobs.md`.
"""

from tieredstore.jobs.backfilling.frames import backfill_frame
from tieredstore.jobs.backfilling.job import BackfillOptions, run_backfill
from tieredstore.jobs.backfilling.target import backfill_target

__all__ = ["BackfillOptions", "backfill_frame", "backfill_target", "run_backfill"]
