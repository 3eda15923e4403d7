"""Starts a run of a job: on a tier, with a journal, somewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tieredstore.jobs.journal import Journal, journal_path
from tieredstore.jobs.run import JobRun, ProgressCallback, ignore_progress
from tieredstore.jobs.runner import LocalRunner, Runner
from tieredstore.jobs.stopping import StopSignal
from tieredstore.scan.location import TierLocation, locate
from tieredstore.tier_url import show_url


class OpenedTier(Protocol):
    """What `tieredstore.open` gives."""

    @property
    def location(self) -> TierLocation: ...


Tier = str | TierLocation | OpenedTier
"""A tier by its URL, where it is found without more (one cluster); else as it was opened."""


def find_location(tier: Tier) -> TierLocation:
    """Find where a tier is. Raises Invalid, Unavailable."""
    if isinstance(tier, (str, Path)):  # a path is told that it is no URL
        return locate(str(tier))
    return tier if isinstance(tier, TierLocation) else tier.location


def identify_tier(location: TierLocation) -> dict[str, object]:
    """Return what a journal notes of a tier, without secrets: another tier is another job."""
    return {
        "tier": show_url(location.url),
        "cluster": location.config.broker_cluster_name,
        "broker": location.broker,
        "state": None if location.state is None else str(location.state.absolute()),
    }


@contextmanager
def start_run(
    name: str,
    arguments: dict[str, object],
    *,
    workers: int = 1,
    runner: Runner | None = None,
    progress: ProgressCallback | None = None,
    work: str | Path | None = None,
    has_journal: bool = True,
    stop: StopSignal | None = None,
) -> Iterator[JobRun]:
    """Start a run of the job `name`, of which `arguments` (JSON) tell it from another one: a run
    that was killed goes on when they are the same.

    workers: processes of this machine, where no `runner` is given. work: folder of the journal;
    None for the user's state directory, or for no journal without `has_journal`. The journal ends
    with the block, unless an error leaves it. stop: as in `JobRun`. Raises Invalid, Busy.
    """
    identity = {"job": name, **arguments}
    folder = Path(work) if work is not None else _state_directory() if has_journal else None
    path = None if folder is None else journal_path(folder, identity)
    with Journal(path, identity) as journal:
        yield JobRun(
            name, runner or LocalRunner(workers), journal, progress or ignore_progress, stop
        )
        journal.finish()


def _state_directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "tieredstore" / "jobs"
