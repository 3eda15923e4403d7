"""Backfill: write the messages of a Parquet table into a tier (`docs/jobs.md`)."""

from tieredstore.jobs.backfilling.frames import backfill_frame

__all__ = ["backfill_frame"]
