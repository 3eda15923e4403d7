"""Finds what is in a store that is opened, and recovers it where it was not stopped cleanly."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from tieredstore.clock import Clock
from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.assembly import StoreParts
from tieredstore.local.index.keys import index_keys_of
from tieredstore.local.index.reader import INDEX_DIRECTORY
from tieredstore.local.index.service import IndexService
from tieredstore.local.log.commit_log import COMMIT_LOG_DIRECTORY
from tieredstore.local.queues.consume_queue_store import CONSUME_QUEUE_DIRECTORY
from tieredstore.local.queues.kinds import SEPARATE_DIRECTORY, is_rocksdb
from tieredstore.local.recovery.checkpoint import CHECKPOINT_FILE
from tieredstore.local.recovery.normal import (
    read_known_checkpoint,
    recover_normally,
    take_kept_queues,
)
from tieredstore.local.recovery.opening import needs_queue_repair, recover
from tieredstore.local.recovery.plan import RecoveryPlan
from tieredstore.local.recovery.store_lock import ABORT_FILE, LOCK_FILE, has_abort_file
from tieredstore.local.store_reads import record_time
from tieredstore.local.topic_table import read_topics
from tieredstore.message.record import decode_record

FUTURE_TOLERANCE_MS: Final = 3_600_000
"""How far ahead of the clock the last message may be for later ones to go on from its time."""
_KNOWN: Final = frozenset(
    {
        COMMIT_LOG_DIRECTORY,
        CONSUME_QUEUE_DIRECTORY,
        SEPARATE_DIRECTORY,
        INDEX_DIRECTORY,
        CHECKPOINT_FILE,
        LOCK_FILE,
        ABORT_FILE,
        "config",
        "tieredstore.lock",  # of a job that wrote to a tier from here before there was a store
    }
)
_log = logging.getLogger(__name__)


def make_root(root: Path) -> None:
    """Make the folder of a store. Raises Invalid for one that has other things in it, and what the
    system refuses."""
    try:
        FILES.make_directory(root)
        names = {path.name for path in root.iterdir()}
    except OSError as error:
        raise translate_os_error(error, "open the store", root) from error
    if names and not names & _KNOWN:
        raise Invalid(
            f"{root}: no message store: expected {COMMIT_LOG_DIRECTORY}/ or an empty "
            f"folder, found {', '.join(sorted(names)[:3])}",
            path=str(root),
        )


def load_recovered(parts: StoreParts, clock: Clock, *, accept_loss: bool, rebuild: bool) -> None:
    """Load the parts of a store whose lock is held, recovered where that is needed.

    accept_loss, rebuild, errors: as of `DefaultMessageStore.load`. Files may be open afterwards
    when it raises.
    """
    root, config = parts.root, parts.config
    parts.commit_log.make_directory()
    plan = None
    if rebuild or accept_loss or has_abort_file(root):
        plan = recover(root, config, accept_loss=accept_loss, rebuild=rebuild)
    try:
        _load_files(parts, clock, plan)
    except Corrupt as damage:
        # Of a store that was stopped cleanly: queues can be built anew, the log cannot.
        if plan is not None or not needs_queue_repair(damage, root):
            raise
        parts.files.close()
        _load_files(parts, clock, recover(root, config, accept_loss=accept_loss))


def _load_files(parts: StoreParts, clock: Clock, plan: RecoveryPlan | None) -> None:
    root, log, index, reput = parts.root, parts.commit_log, parts.index, parts.reput
    log.load()
    if plan is not None or not take_kept_queues(log, parts.queues):
        parts.queues.load()
    parts.batch_queues.load(owner=True)
    named = read_topics(root).list_batch_topics()
    parts.appender.refused_topics = parts.batch_queues.topics | named
    checkpoint = read_known_checkpoint(root)
    index.load()
    index.end_timestamp_ms = checkpoint.index_msg_timestamp_ms
    if index.missing_from is not None:
        reput.miss_index_from(max(index.missing_from, log.min_offset))
    recover_normally(root, log, parts.queues, plan)
    parts.batch_queues.truncate(log.max_offset)
    parts.batch_queues.correct_min_offset(log.min_offset)
    reput.offset = _find_dispatch_start(parts, checkpoint.logics_physical_offset, plan)
    last = parts.queues.find_last_message()
    parts.appender.last_timestamp_ms = _find_last_timestamp_ms(parts, clock, last)
    reput.timestamp_ms = parts.appender.last_timestamp_ms
    if parts.config.message_index_enable and last is not None and last[0] < reput.built_offset:
        _warn_of_missing_entries(parts, index, *last)


def _find_dispatch_start(
    parts: StoreParts, checkpoint_offset: int, plan: RecoveryPlan | None
) -> int:
    """Find the byte of the log from which on messages are dispatched. checkpoint_offset: the one
    that the checkpoint names, 0 when it names none."""
    log, queues = parts.commit_log, parts.queues
    if plan is None:
        # Queues that know less than was kept were taken away: they are built again.
        known = queues.dispatch_from
        kept = min(checkpoint_offset or known, known)
        return min(max(kept, log.min_offset), log.max_offset)
    if is_rocksdb(parts.config):
        return min(plan.dispatch_from, max(queues.dispatch_from, log.min_offset))
    return plan.dispatch_from


def _find_last_timestamp_ms(parts: StoreParts, clock: Clock, last: tuple[int, int] | None) -> int:
    """Find the store time of the last message, from which later ones go on. last: its physical
    offset and size."""
    time = -1 if last is None else record_time(parts.commit_log, last[0])
    now = clock.now_ms()
    if time > now + FUTURE_TOLERANCE_MS:
        _log.warning(
            "%s: the last message is %d ms in the future; new messages get the clock's time",
            parts.root,
            time - now,
        )
        return 0
    return max(time, 0)


def _warn_of_missing_entries(
    parts: StoreParts, index: IndexService, offset: int, size: int
) -> None:
    """Say that the index lacks what was put while it was switched off. offset, size: of the last
    message that was dispatched."""
    if index.end_physical_offset >= offset:
        return
    record = parts.commit_log.get(offset, size)
    if record is not None and index_keys_of(decode_record(record).properties_bytes):
        _log.warning(
            "%s: the index ends at the message at %d: what was put behind it while "
            "messageIndexEnable was false is not found by key; `tieredstore store recover %s "
            "--rebuild --yes` gives it its entries",
            parts.root,
            index.end_physical_offset,
            parts.root,
        )
