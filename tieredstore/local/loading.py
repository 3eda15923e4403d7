"""Loads a store when it is opened, and recovers it after an unclean stop."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import numpy as np

from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.assembly import StoreParts
from tieredstore.local.index.keys import index_keys_of
from tieredstore.local.index.reader import INDEX_DIRECTORY
from tieredstore.local.index.service import IndexService
from tieredstore.local.log.commit_log import COMMIT_LOG_DIRECTORY, find_log_directory
from tieredstore.local.queues.consume_queue_store import CONSUME_QUEUE_DIRECTORY
from tieredstore.local.queues.interface import QueueUnits
from tieredstore.local.queues.kinds import SEPARATE_DIRECTORY, find_database_directory
from tieredstore.local.queues.rocksdb.replacing import replace_database
from tieredstore.local.recovery.checkpoint import CHECKPOINT_FILE
from tieredstore.local.recovery.normal import (
    read_known_checkpoint,
    recover_normally,
    repair,
    take_kept_queues,
)
from tieredstore.local.recovery.plan import RecoveryPlan
from tieredstore.local.recovery.planning import plan_recovery
from tieredstore.local.recovery.store_lock import ABORT_FILE, LOCK_FILE, has_abort_file
from tieredstore.local.store_reads import record_time
from tieredstore.local.topic_table import read_topics
from tieredstore.message.consume_queue import UNIT_DTYPE, pack_unit
from tieredstore.message.record import decode_record

_log = logging.getLogger(__name__)
_NAMED = 8


def recover(
    root: Path, config: StoreConfig, *, accept_loss: bool = False, rebuild: bool = False
) -> RecoveryPlan:
    """Bring the files of a store to a state from which the dispatch can continue, and return the
    plan that was executed. The caller must hold the store's lock.

    `accept_loss`: whether valid messages after a damaged one may be cut off.
    `rebuild`: as `full` of `plan_recovery`.

    Raises Corrupt for a loss that was not accepted, and the errors of `plan_recovery` and `repair`.
    """
    plan = plan_recovery(
        root, config, full=rebuild, compares=not config.is_rocksdb, builds_unknown=False
    )
    if plan.needs_consent and not accept_loss:
        raise Corrupt(
            f"{plan.needs_consent}. Nothing was done: `tieredstore store check {root}` shows the "
            f"plan, `tieredstore store recover {root} --yes` does it",
            path=str(root),
            offset=plan.log_end,
        )
    for warning in plan.warnings:
        _log.warning("%s: recovery: %s", root, warning)
    _log.warning("%s: recovery: %s", root, describe_plan(plan))
    repair(plan)
    return plan


def check_queues(root: Path, config: StoreConfig, dispatch_from: int) -> None:
    """Compare the queues of a cleanly stopped store with its log, in case files were changed since
    the stop. A put to a missing queue would restart its offsets at 0. `dispatch_from`: position in
    the log from which messages are dispatched in any case. Raises Corrupt if the log has earlier
    messages that are in no queue. A recovery adds them to the queues."""
    if config.is_rocksdb or not find_log_directory(config, root).is_dir():
        return
    plan = plan_recovery(root, config, with_index=False, compares=True, builds_unknown=False)
    for warning in plan.warnings:
        _log.warning("%s", warning)
    lost = plan.lost_ends
    if plan.queue_cuts or lost or (plan.queues_to_build and plan.dispatch_from < dispatch_from):
        keys = {(one.topic, one.queue_id) for one in plan.queues_to_build}
        names = [f"{key[0]}/{key[1]}" for key in sorted(keys | {one.key for one in lost})]
        folder = root / CONSUME_QUEUE_DIRECTORY
        raise Corrupt(
            f"{folder}: the commit log has messages that no consume queue has: of "
            f"{', '.join(names[:_NAMED])}{' and more' if len(names) > _NAMED else ''}",
            path=str(folder / "missing"),
        )


def needs_queue_repair(damage: Corrupt, root: Path) -> bool:
    """Return whether the consume queues are damaged and can be repaired from the log."""
    path = Path(damage.path or "/")
    return (root / CONSUME_QUEUE_DIRECTORY) in path.parents


def is_in_database(damage: Corrupt, root: Path, config: StoreConfig) -> bool:
    """Return whether the database of the consume queues is damaged."""
    return damage.path == str(find_database_directory(root, config))


def describe_plan(plan: RecoveryPlan) -> str:
    """Describe the actions of a recovery plan in one line."""
    end = f"the log ends at {plan.log_end} ({plan.end_cause.value})"
    parts = [f"{end}, {plan.records} messages checked from {plan.check_from} on"]
    if plan.cut_bytes:
        parts.append(f"{plan.cut_bytes} bytes after it are wiped")
    if plan.queue_cuts:
        parts.append(f"{len(plan.queue_cuts)} queues are cut")
    if plan.index_cuts or plan.delete_index_files:
        count = len(plan.index_cuts) + len(plan.delete_index_files)
        parts.append(f"{count} index files are rebuilt")
    parts.append(f"queues and index are built from {plan.dispatch_from} on")
    return "; ".join(parts)


FUTURE_TOLERANCE_MS: Final = 3_600_000
"""Maximum time (ms) by which the store time of the last message may be ahead of the clock. Within
this limit, new messages get the last message's time until the clock catches up. Beyond it, they get
the clock's time."""
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
        "tieredstore.lock",  # of a job that wrote to a tier before the store existed
    }
)


def make_root(root: Path) -> None:
    """Create the folder of a store. Raises Invalid if it has foreign content, and OSError."""
    with wrap_os_errors("open the store", root):
        FILES.make_directory(root)
        names = {path.name for path in root.iterdir()}
    if names and not names & _KNOWN:
        raise Invalid(
            f"{root}: no message store: expected {COMMIT_LOG_DIRECTORY}/ or an empty "
            f"folder, found {', '.join(sorted(names)[:3])}",
            path=str(root),
        )


def load_recovered(
    parts: StoreParts, clock: Clock, *, accept_loss: bool, rebuild: bool
) -> frozenset[str]:
    """Load the parts of a store whose lock is held, and recover the store if needed. Returns the
    topics whose batch consume queues are not read. `accept_loss`, `rebuild`: as in
    `DefaultMessageStore.load`. Files may remain open after an error."""
    root, config = parts.root, parts.config
    parts.commit_log.make_directory()
    plan = None
    try:
        if rebuild or accept_loss or has_abort_file(root):
            plan = recover(root, config, accept_loss=accept_loss, rebuild=rebuild)
        _load_files(parts, clock, plan, replaces=rebuild)
    except Corrupt as damage:
        # Queues can be rebuilt, the log cannot.
        in_database = config.is_rocksdb and is_in_database(damage, root, config)
        if not in_database and (plan is not None or not needs_queue_repair(damage, root)):
            raise
        _log.warning("%s", damage)
        parts.queues.close()
        parts.files.close()
        plan = recover(root, config, accept_loss=accept_loss, rebuild=in_database)
        _load_files(parts, clock, plan, replaces=in_database)
    return _find_unread_topics(parts)


def _find_unread_topics(parts: StoreParts) -> frozenset[str]:
    """Return the topics with batch consume queues in the database, and log a warning."""
    if not parts.config.is_rocksdb:
        return frozenset()
    named = read_topics(parts.root).list_batch_topics() - parts.batch_queues.topics
    found = frozenset(topic for topic in named if parts.queues.find_queue_ids(topic))
    if found:
        _log.warning(
            "%s: batch consume queues (BatchCQ) in RocksDB are not read. Topics %s are left out",
            parts.root,
            ", ".join(sorted(found)),
        )
    return found


def _load_files(
    parts: StoreParts, clock: Clock, plan: RecoveryPlan | None, *, replaces: bool
) -> None:
    root, log, index, reput = parts.root, parts.commit_log, parts.index, parts.reput
    log.load()
    named = read_topics(root).list_batch_topics()
    if replaces and parts.config.is_rocksdb:
        replace_database(find_database_directory(root, parts.config), log.min_offset, named)
    for record in () if plan is None else plan.doubtful:
        reput.dispatcher.skipped.note(record.topic, record.offset, record.reason)
    is_kept = plan is None and take_kept_queues(log, parts.queues)
    if not is_kept:
        parts.queues.load()
    parts.batch_queues.load(owner=True)
    parts.appender.refused_topics = parts.batch_queues.topics | named
    checkpoint = read_known_checkpoint(root)
    index.load()
    index.end_timestamp_ms = checkpoint.index_msg_timestamp_ms
    if index.missing_from is not None:
        reput.miss_index_from(max(index.missing_from, log.min_offset))
    recover_normally(root, log, parts.queues, plan)
    for end in () if plan is None else plan.lost_ends:
        queue = parts.queues.get(end.key)
        if queue is not None and queue.max_offset == end.offset:
            unit = np.frombuffer(pack_unit(end.position, end.size, 0), UNIT_DTYPE)
            units = QueueUnits(end.key, end.offset, unit, np.zeros(1, np.int64))
            parts.queues.append([units], end.position + end.size)
    parts.batch_queues.truncate(log.max_offset)
    parts.batch_queues.correct_min_offset(log.min_offset)
    reput.offset = _find_dispatch_start(parts, checkpoint.logics_physical_offset, plan)
    if plan is None and not is_kept and parts.queues.max_physical_offset > 0:
        check_queues(root, parts.config, reput.offset)
    last = parts.queues.find_last_message()
    parts.appender.last_timestamp_ms = _find_last_timestamp_ms(parts, clock, last)
    reput.timestamp_ms = parts.appender.last_timestamp_ms
    if parts.config.message_index_enable and last is not None and last[0] < reput.built_offset:
        _warn_of_missing_entries(parts, index, *last)


def _find_dispatch_start(
    parts: StoreParts, checkpoint_offset: int, plan: RecoveryPlan | None
) -> int:
    """Return the log position at which the dispatch must begin. `checkpoint_offset`: the offset in
    the checkpoint, or 0."""
    log, queues = parts.commit_log, parts.queues
    if plan is None:
        # Queues older than the saved state were removed, and are rebuilt.
        known = queues.dispatch_from
        kept = min(checkpoint_offset or known, known)
        return min(max(kept, log.min_offset), log.max_offset)
    if parts.config.is_rocksdb:
        return min(plan.dispatch_from, max(queues.dispatch_from, log.min_offset))
    return plan.dispatch_from


def _find_last_timestamp_ms(parts: StoreParts, clock: Clock, last: tuple[int, int] | None) -> int:
    """Return the store time of the last message, which no later message may precede. `last`:
    physical offset and size of the last message."""
    time = -1 if last is None else record_time(parts.commit_log, last[0])
    now = clock.now_ms()
    if time > now + FUTURE_TOLERANCE_MS:
        _log.warning(
            "%s: the last message is %d ms in the future. New messages get the clock's time",
            parts.root,
            time - now,
        )
        return 0
    return max(time, 0)


def _warn_of_missing_entries(
    parts: StoreParts, index: IndexService, offset: int, size: int
) -> None:
    """Warn if the index lacks messages that were put while it was disabled. `offset`, `size`:
    physical offset and size of the last dispatched message."""
    if index.end_physical_offset >= offset:
        return
    record = parts.commit_log.get(offset, size)
    if record is not None and index_keys_of(decode_record(record).properties_bytes):
        _log.warning(
            "%s: the index ends at the message at %d. Later messages, put while "
            "messageIndexEnable was false, are not found by key. `tieredstore store recover %s "
            "--rebuild --yes` adds their entries",
            parts.root,
            index.end_physical_offset,
            parts.root,
        )
