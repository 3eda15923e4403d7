"""Backfill: a Parquet table becomes messages of a tier.

What is written, in which order and why: `docs/jobs.md`.
"""

from tieredstore.jobs.backfill.frames import backfill_frame
from tieredstore.jobs.backfill.job import BackfillOptions, backfill
from tieredstore.jobs.backfill.target import backfill_target

__all__ = ["BackfillOptions", "backfill", "backfill_frame", "backfill_target"]
