"""`restore`: a broker's store directory from its tier alone, when its disk was lost."""

from tieredstore.jobs.restoring.job import run_restore

__all__ = ["run_restore"]
