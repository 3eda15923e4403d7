"""Flush on demand: log, queues and index to disk, then the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tieredstore.errors import TieredStoreError
from tieredstore.local.dispatch.reput import Reput
from tieredstore.local.index.service import IndexService
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface
from tieredstore.local.recovery.checkpoint import read_checkpoint, write_checkpoint
from tieredstore.local.running_flags import RunningFlag, RunningFlags, find_passing


class StoreFlush:
    """Brings a store to disk. After a lasting error no more messages are taken."""

    def __init__(
        self,
        root: Path,
        log: CommitLog,
        queues: ConsumeQueueStoreInterface,
        index: IndexService | None,
        reput: Reput,
        flags: RunningFlags,
    ) -> None:
        self._root = root
        self._log = log
        self._queues = queues
        self._index = index
        self._reput = reput
        self._flags = flags
        self._error: TieredStoreError | None = None

    def flush(self) -> None:
        """Write everything dispatched so far to disk; the checkpoint says so when this returns.

        Raises Exhausted where there was no room for the checkpoint. Raises Unavailable, and then
        ever again: what the system failed to write once it does not try to write a second time, so
        that a later success would mean nothing.
        """
        self._do(self._sync)

    def sync_log(self) -> None:
        """Write the log to disk, up to where it ends now. Raises what `flush` raises."""
        self._do(self._log.sync)

    def _do(self, sync: Callable[[], object]) -> None:
        if self._error is not None:
            raise self._error
        try:
            sync()
        except TieredStoreError as error:
            if find_passing(error) is None:
                self._error = error
                reason = f"a flush failed: {error}"
                self._flags.set(RunningFlag.NOT_WRITEABLE, reason, lasting=True)
            raise

    def _sync(self) -> None:
        timestamp = self._reput.timestamp_ms
        self._log.sync()
        self._queues.sync()
        checkpoint = read_checkpoint(self._root)
        if self._index is not None:
            self._index.sync()
            checkpoint.index_msg_timestamp_ms = self._index.end_timestamp_ms
        if timestamp:
            checkpoint.physic_msg_timestamp_ms = checkpoint.logics_msg_timestamp_ms = timestamp
        write_checkpoint(self._root, checkpoint)
