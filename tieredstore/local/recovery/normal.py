"""Recovery of a store that was stopped cleanly (Java's recoverNormally)."""

from __future__ import annotations

from pathlib import Path

from tieredstore.errors import Invalid
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface
from tieredstore.local.recovery.tail import find_tail


def recover_normally(root: Path, log: CommitLog, queues: ConsumeQueueStoreInterface) -> None:
    """Find where the log ends and where the queues begin; no queue leads out of the log afterwards.

    Raises Invalid for queues without a log, Corrupt where cutting would lose messages.
    """
    if log.is_empty and queues.max_physical_offset > 0:
        raise Invalid(
            f"{root}: there are consume queues but no commit log",
            path=str(root),
        )
    if not log.is_empty:
        tail = find_tail(log, queues)
        log.set_tail(tail)
        queues.truncate(tail)
    queues.correct_min_offset(log.min_offset)
