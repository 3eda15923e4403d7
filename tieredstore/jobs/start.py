"""Starts a run of a job: on a tier, with a journal, somewhere."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tieredstore.jobs.journal import Journal, journal_path
from tieredstore.jobs.journals import forget_old_journals, keep_days, state_directory
from tieredstore.jobs.run import JobRun, ProgressCallback, ignore_progress
from tieredstore.jobs.runner import LocalRunner, Runner
from tieredstore.jobs.stopping import StopSignal
from tieredstore.scan.location import TierLocation, locate
from tieredstore.tier_url import show_url
from tieredstore.timestamps import format_time

_log = logging.getLogger(__name__)


class OpenedTier(Protocol):
    """What `tieredstore.open` gives."""

    @property
    def location(self) -> TierLocation: ...


Tier = str | Path | TierLocation | OpenedTier
"""A tier by its URL or folder, where it is found without more (one cluster); else as it was
opened."""


def find_location(tier: Tier) -> TierLocation:
    """Find where a tier is. Raises Invalid, Unavailable."""
    if isinstance(tier, (str, Path)):
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
    with the block, unless an error leaves it, whose notes then say where it is; the user's old
    ones go at each start. stop: as in `JobRun`. Raises Invalid, Busy.
    """
    identity = {"job": name, **arguments}
    is_users = work is None and has_journal
    folder = Path(work) if work is not None else state_directory() if has_journal else None
    path = None if folder is None else journal_path(folder, identity)
    if folder is not None and is_users:
        forget_old_journals(folder, keep_days(), but=path)
    with Journal(path, identity) as journal:
        if journal.kept_ms is not None:
            _log.warning(
                "%s: goes on after %s of a run that ended at %s: %s",
                name,
                _count_steps(journal),
                format_time(journal.kept_ms),
                _describe(journal, is_users=is_users),
            )
        try:
            yield JobRun(
                name, runner or LocalRunner(workers), journal, progress or ignore_progress, stop
            )
        except BaseException as error:
            if journal.path is not None and journal.steps:
                verb = "is" if journal.steps == 1 else "are"
                error.add_note(
                    f"{name}: {_count_steps(journal)} {verb} done, with which the same command "
                    f"goes on: {_describe(journal, is_users=is_users)}"
                )
            raise
        journal.finish()


def _count_steps(journal: Journal) -> str:
    return "1 step" if journal.steps == 1 else f"{journal.steps} steps"


def _describe(journal: Journal, *, is_users: bool) -> str:
    """Which journal, and how it is dropped."""
    path = journal.path
    assert path is not None
    place = "" if is_users else f" --work {shlex.quote(str(path.parent))}"
    return f"journal {path}; `tieredstore jobs forget {path.stem}{place} --yes` begins anew"
