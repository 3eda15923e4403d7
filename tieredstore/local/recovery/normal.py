"""The last step of each recovery: where the log ends and where the queues begin (Java's
recoverNormally)."""

from __future__ import annotations

import logging
from pathlib import Path

from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface, LogSpan
from tieredstore.local.recovery.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from tieredstore.local.recovery.plan import RecoveryPlan
from tieredstore.local.recovery.tail import find_tail

_log = logging.getLogger(__name__)


def take_kept_queues(log: CommitLog, queues: ConsumeQueueStoreInterface) -> bool:
    """Take the queues as the last stop left them, if the log is the one of then: somebody else may
    have written since. False where they are to be loaded."""
    kept = queues.load_kept()
    try:
        return kept is not None and kept == LogSpan(log.min_offset, find_tail(log, queues))
    except Corrupt:
        return False


def recover_normally(
    root: Path,
    log: CommitLog,
    queues: ConsumeQueueStoreInterface,
    plan: RecoveryPlan | None = None,
) -> None:
    """Find where the log ends, or take that from a plan that was carried out, and where the queues
    begin; no queue leads out of the log afterwards.

    Raises Invalid for queues without a log, Corrupt where cutting would lose messages.
    """
    if log.is_empty and queues.max_physical_offset > 0:
        raise Invalid(
            f"{root}: there are consume queues but no commit log",
            path=str(root),
        )
    if not log.is_empty:
        tail = find_tail(log, queues) if plan is None else plan.log_end
        log.set_tail(tail)
        queues.truncate(tail if plan is None else min(plan.units_until, tail))
    queues.correct_min_offset(log.min_offset)


def read_known_checkpoint(root: Path) -> Checkpoint:
    """Read the checkpoint of a store; one that is damaged says nothing, and is made anew."""
    try:
        return read_checkpoint(root)
    except Corrupt as error:
        _log.warning("%s; taken as unknown", error)
        write_checkpoint(root, Checkpoint())
        return Checkpoint()
