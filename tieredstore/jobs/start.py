"""Start of a job's run, with its tier, journal and runner."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tieredstore.jobs.journal import Journal, journal_path
from tieredstore.jobs.journals import forget_old_journals, keep_days, state_directory
from tieredstore.jobs.options import RunOptions
from tieredstore.jobs.run import JobRun, ignore_progress
from tieredstore.jobs.runner import LocalRunner
from tieredstore.scan.location import TierLocation, locate
from tieredstore.tier_url import show_url
from tieredstore.timestamps import format_time

_log = logging.getLogger(__name__)


class OpenedTier(Protocol):
    """An opened tier, such as `tieredstore.open` returns."""

    @property
    def location(self) -> TierLocation: ...


Tier = str | Path | TierLocation | OpenedTier
"""A tier: its URL or folder (if it has a single cluster), its location, or an opened tier."""


def find_location(tier: Tier) -> TierLocation:
    """Return the location of a tier. Raises Invalid, Unavailable."""
    if isinstance(tier, (str, Path)):
        return locate(str(tier))
    return tier if isinstance(tier, TierLocation) else tier.location


def identify_tier(location: TierLocation) -> dict[str, object]:
    """Return the identity of a tier for a journal, without secrets."""
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
    options: RunOptions | None = None,
    *,
    has_journal: bool = True,
) -> Iterator[JobRun]:
    """Start a run of the job `name`, or continue a killed run with the same `arguments` (JSON).
    `has_journal`: whether, without `work`, a journal is kept in the user's state directory. The
    journal is deleted at the end of the block. After an error it stays, and the notes of the error
    name it. Each start deletes the user's expired journals. Raises Invalid, Busy."""
    options = options or RunOptions()
    work = options.work
    identity = {"job": name, **arguments}
    is_users = work is None and has_journal
    folder = Path(work) if work is not None else state_directory() if has_journal else None
    path = None if folder is None else journal_path(folder, identity)
    if folder is not None and is_users:
        forget_old_journals(folder, keep_days(), but=path)
    with Journal(path, identity) as journal:
        if journal.kept_ms is not None:
            _log.warning(
                "%s: continues after %s of a run that ended at %s: %s",
                name,
                _count_steps(journal),
                format_time(journal.kept_ms),
                _describe(journal, is_users=is_users),
            )
        try:
            runner = options.runner or LocalRunner(options.workers)
            yield JobRun(name, runner, journal, options.progress or ignore_progress, options.stop)
        except BaseException as error:
            if journal.path is not None and journal.steps:
                error.add_note(
                    f"{name}: {_count_steps(journal)} done, the same command continues: "
                    f"{_describe(journal, is_users=is_users)}"
                )
            raise
        journal.finish()


def _count_steps(journal: Journal) -> str:
    return "1 step" if journal.steps == 1 else f"{journal.steps} steps"


def _describe(journal: Journal, *, is_users: bool) -> str:
    """Return a note that names the journal and the command that deletes it."""
    path = journal.path
    assert path is not None
    place = "" if is_users else f" --work {shlex.quote(str(path.parent))}"
    return f"journal {path}, `tieredstore jobs forget {path.stem}{place} --yes` drops it"
