"""Plans a recovery, without writing anything. `docs/local-store.md` has the rules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tieredstore.config import StoreConfig
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.index.reader import IndexShape
from tieredstore.local.log.commit_log import find_log_directory
from tieredstore.local.log.file_names import refuse_size
from tieredstore.local.log.foreign_log import ForeignCommitLog, check_log_form
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue import round_up_to_units
from tieredstore.local.queues.consume_queue_store import batch_topics
from tieredstore.local.queues.missing.compare import Comparison, explain_unread
from tieredstore.local.recovery import log_scan
from tieredstore.local.recovery.checkpoint import CHECKPOINT_FILE, Checkpoint, read_checkpoint
from tieredstore.local.recovery.index_plan import IndexPlan, plan_index
from tieredstore.local.recovery.plan import RecoveryPlan
from tieredstore.local.recovery.queue_compare import (
    QueueComparison,
    QueueStates,
    QueuesToMend,
    list_builds,
    list_spans,
)
from tieredstore.local.recovery.queue_files import QueueOnDisk, cut_queue, inspect_queues
from tieredstore.local.recovery.store_lock import has_abort_file
from tieredstore.message.columns.walk import Stop, walk_records
from tieredstore.message.layout import MAGICS, MAX_STORE_TIMESTAMP_END
from tieredstore.message.record import StoredMessage

TIME_SLACK_MS: Final = 3_000
"""Time (ms) that is subtracted from the times in a checkpoint before they are used, as in Java."""


def plan_recovery(
    root: str | Path,
    config: StoreConfig,
    *,
    full: bool = False,
    is_clean: bool | None = None,
    with_index: bool = True,
    compares: bool = False,
    builds_unknown: bool = True,
) -> RecoveryPlan:
    """Plan the recovery of the store in a folder, without writing anything. `full`: check every
    record, and rebuild all queues and the index from the log. `is_clean`: whether the store was
    stopped cleanly, if the caller knows this without the `abort` file. `with_index`: whether to
    include the index, which a reader of queues does not need. `compares`: whether to compare the
    queues with the whole log, which reads all units. `builds_unknown`: see `QueueComparison`.

    Raises Corrupt for damage that no recovery can repair (a missing file in the middle of the
    commit log, files of another size than configured). Raises Invalid for queues without a log.
    """
    files = PositionalFiles(writable=False)
    try:
        planner = _Planner(
            root=Path(root),
            config=config,
            files=files,
            full=full,
            is_clean=is_clean,
            with_index=with_index,
            compares=compares and not full,
            builds_unknown=builds_unknown,
        )
        return planner.make()
    finally:
        files.close()


@dataclass(kw_only=True)
class _Planner:
    root: Path
    config: StoreConfig
    files: PositionalFiles
    full: bool
    is_clean: bool | None
    with_index: bool
    compares: bool
    builds_unknown: bool

    def __post_init__(self) -> None:
        config = self.config
        is_clean = self.is_clean
        self.was_clean = not has_abort_file(self.root) if is_clean is None else is_clean
        self.warnings: list[str] = []
        self.log_directory = find_log_directory(config, self.root)
        self.log = ForeignCommitLog(self.log_directory, self.files)
        self.in_rocksdb = config.is_rocksdb
        self.shape = IndexShape(config.max_hash_slot_num, config.max_index_num)

    def make(self) -> RecoveryPlan:
        check_log_form(self.root, self.config)
        self.log.refresh()
        self._check_file_size()
        log = self.log
        before = self._read_checkpoint()
        queue_file_size = round_up_to_units(self.config.mapped_file_size_consume_queue_bytes)
        states: QueueStates = []
        if not self.in_rocksdb:
            states = inspect_queues(
                self.root,
                self.files,
                queue_file_size,
                log.min_offset,
                # A rebuild accepts queue files of any length.
                is_clean=self.was_clean and not self.full,
                may_be_unreadable=self.compares or self.full,
            )
        self._check_log_is_there(states)
        is_sure = self.was_clean and not self.full
        sure = self._find_sure_offset(before, states)
        check_from = max(sure, log.min_offset)
        scan = log_scan.LogScan(
            log,
            check_from,
            force_prop_crc=self.config.force_verify_prop_crc,
            has_prop_crcs=self.config.enabled_append_prop_crc,
            with_queues=True,
        )
        end = scan.end
        behind = log_scan.find_records_behind(log, end.offset)
        consent = self._explain_loss(before, scan, behind)
        # After a clean stop, everything up to the end of the log counts.
        cut_at = end.offset if is_sure else min(check_from, end.offset)
        index = IndexPlan(end_timestamp_ms=before.index_msg_timestamp_ms)
        if self.with_index and not is_sure:
            index = self._plan_index(before, cut_at, end.offset)
        cuts = []
        for state, queue in states:
            cut = cut_queue(state, queue, self.files, cut_at, is_unsure=not is_sure)
            if cut is not None:
                cuts.append(cut)
        built_to = cut_at
        kept = before.logics_physical_offset
        # A database has its own position. Java leaves none in the checkpoint.
        if is_sure and (kept or not self.in_rocksdb):
            known = max((state.kept_end for state, _ in states), default=kept)
            built_to = min(max(min(kept or known, known), log.min_offset), end.offset)
        compared = QueuesToMend(None, frozenset(), Comparison())
        if self.compares:
            compared = self._compare(states, cut_at, end.offset)
            cuts = compared.delete_rebuilt(cuts, states)
            if is_sure and any(state.kept_end for state, _ in states):
                built_to = end.offset
        dispatch_from = self._find_dispatch_from(
            built_to, scan, [state for state, _ in states], index
        )
        if compared.dispatch_from is not None:
            dispatch_from = min(dispatch_from, compared.dispatch_from)
        after = replace(
            before,
            logics_physical_offset=dispatch_from,
            index_msg_timestamp_ms=min(before.index_msg_timestamp_ms, index.end_timestamp_ms),
        )
        if dispatch_from == 0:  # where 0 means "not known", and the times count
            after.logics_msg_timestamp_ms = 0
        # A database loses units at its end only, and has no holes.
        units_until = end.offset if self.in_rocksdb and not self.full else cut_at
        unread = compared.found.unread
        spans = {} if is_sure and self.in_rocksdb else list_spans(scan, in_rocksdb=self.in_rocksdb)
        wipe_path, wipe_position, delete, cut_bytes = log_scan.find_rest(
            log, self.files, end.offset
        )
        return RecoveryPlan(
            self.root,
            self.was_clean,
            check_from,
            scan.records,
            end.offset,
            end.cause,
            end.detail,
            cut_bytes,
            wipe_path,
            wipe_position,
            delete,
            behind,
            tuple(cuts),
            units_until,
            tuple(index.cuts),
            tuple(index.delete),
            self.shape,
            log_scan.list_log_files(log, check_from, end.offset),
            dispatch_from,
            list_builds(self.root, spans, states, compared),
            before,
            after,
            consent,
            (*self.warnings, *(f"{self.root}: {explain_unread(one)}" for one in unread)),
            bool(unread),
            self.in_rocksdb and not compared.found.is_whole,
            tuple(scan.doubtful),
            tuple(compared.found.lost_ends),
        )

    def _compare(self, states: QueueStates, cut_at: int, end: int) -> QueuesToMend:
        place = (self.root, self.config, self.log, self.files)
        return QueueComparison(*place, end, self.builds_unknown).compare(states, cut_at)

    def _check_file_size(self) -> None:
        run, expected = self.log.run, self.config.mapped_file_size_commit_log_bytes
        if run.offsets and run.file_size != expected:
            raise refuse_size(str(self.log.path_of(run.start)), expected, run.file_size)

    def _read_checkpoint(self) -> Checkpoint:
        try:
            return read_checkpoint(self.root)
        except Corrupt as error:
            self.warnings.append(f"{error}. It counts as unknown")
            return Checkpoint()

    def _check_log_is_there(self, states: QueueStates) -> None:
        if not self.log.run.offsets and any(state.kept_end for state, _ in states):
            raise Invalid(
                f"{self.root}: there are consume queues but no commit log in {self.log_directory}",
                path=str(self.root),
            )

    def _find_sure_offset(self, before: Checkpoint, states: QueueStates) -> int:
        """Return the log offset before which all records and their units are certainly on disk."""
        log = self.log
        has_units = any(state.max_offset > state.start_offset for state, _ in states)
        if self.full or not (has_units or self.in_rocksdb):
            return log.min_offset
        kept = before.logics_physical_offset
        if kept > 0:
            if kept <= log.min_offset:
                return log.min_offset
            if self._is_border(kept):
                return self._step_back(min(kept, log.readable_offset), states)
            self.warnings.append(
                f"{self.root / CHECKPOINT_FILE}: dispatch position {kept}: no message begins or "
                "ends there. The times count"
            )
        limit_ms = before.flushed_timestamp_ms - TIME_SLACK_MS
        if self.in_rocksdb:  # Java does not advance the other time then
            limit_ms = before.physic_msg_timestamp_ms - TIME_SLACK_MS
        for offset in reversed(log.run.offsets):
            data = log.get(offset, MAX_STORE_TIMESTAMP_END)
            if data is None:
                continue
            head = StoredMessage(data, 0, len(data))
            if head.magic in MAGICS and 0 < head.store_timestamp_ms <= limit_ms:
                return offset
        return log.min_offset

    def _step_back(self, offset: int, states: QueueStates) -> int:
        """Return `offset`. But if the last message with a unit before `offset` is damaged, return
        its position, and if later messages without a unit are damaged, return its end. The check of
        the records then begins there, and finds damage even if these messages were once intact on
        disk. A false unit does not count."""
        last: tuple[int, int, int] | None = None
        for state, queue in states:
            kept = state.max_offset
            if state.kept_end > offset:
                kept = queue.find_cut(offset)
            unit = queue.unit(kept - 1)
            if unit is not None and unit[1] > 0 and unit[0] + unit[1] <= offset:
                last = unit if last is None or unit[0] > last[0] else last
        if last is None or last[0] < self.log.min_offset:
            return offset
        record = self.log.get(last[0], last[1])
        if record is not None and log_scan.find_record_fault(record, last[0]) is None:
            end = last[0] + last[1]
            return offset if log_scan.LogScan(self.log, end).end.offset >= offset else end
        return last[0] if self._is_border(last[0]) else offset

    def _is_border(self, offset: int) -> bool:
        """Return whether a message begins or ends at the log offset `offset`."""
        log = self.log
        if offset >= log.readable_offset:
            if offset > log.readable_offset:
                self.warnings.append(
                    f"{self.log_directory}: the log was on disk up to {offset}, and ends at "
                    f"{log.readable_offset} now"
                )
            return offset == log.readable_offset
        size = log.get(offset, 4)
        length = 0 if size is None else int.from_bytes(size, "big", signed=True)
        record = log.get(offset, length) if length > 0 else None
        if record is not None and log_scan.find_record_fault(record, offset) is None:
            return True
        file_begin = offset - offset % log.file_size
        if offset == file_begin:
            return True
        walk = walk_records(log.rest_of_file(file_begin)[: offset - file_begin])
        return walk.stop is Stop.END

    def _explain_loss(
        self, before: Checkpoint, scan: log_scan.LogScan, behind: log_scan.RecordsBehind
    ) -> str:
        """Return why an operator must agree before the log is cut at the end that the scan found,
        or ""."""
        end = scan.end
        if behind.records == 0:
            return log_scan.find_lost_end(self.root, self.log, end.offset) if self.was_clean else ""
        text = (
            f"{self.log.path_of(end.offset)}: {end.cause.value} at {end.offset}, and after it, "
            f"from {behind.first_offset} on, {behind.records} valid messages "
            f"({behind.size_bytes} bytes), which a recovery cuts off"
        )
        # No message is older than the one before it, even if a client wrote another time.
        earlier_ms = scan.last_timestamp_ms if scan.records else before.logics_msg_timestamp_ms
        was_flushed = (
            end.offset < before.logics_physical_offset
            or 0 < max(behind.first_timestamp_ms, earlier_ms) < before.physic_msg_timestamp_ms
        )
        is_unwritten = end.cause is log_scan.EndCause.UNWRITTEN or log_scan.has_lost_sector(
            self.log, end.offset, behind.first_offset
        )
        if not was_flushed and is_unwritten:
            self.warnings.append(
                f"{text}. An earlier write was lost with the power, or with the process in the "
                "middle of a batch, so none of them was promised to be durable"
            )
            return ""
        detail = f" ({end.detail})" if end.detail else ""
        return f"{text}{detail}"

    def _plan_index(self, before: Checkpoint, cut_at: int, log_end: int) -> IndexPlan:
        is_built = self.config.message_index_enable
        flushed_ms, sure_offset = before.index_msg_timestamp_ms, log_end
        if is_built:  # else later entries follow the kept ones with `messageIndexEnable`
            sure_offset = min(cut_at, before.logics_physical_offset)
            if self.full:
                flushed_ms, sure_offset = -1, 0
        return plan_index(
            self.root,
            self.files,
            self.shape,
            flushed_timestamp_ms=flushed_ms,
            sure_offset=sure_offset,
            log_min_offset=self.log.min_offset,
            is_built=is_built,
        )

    def _find_dispatch_from(
        self, built_to: int, scan: log_scan.LogScan, states: list[QueueOnDisk], index: IndexPlan
    ) -> int:
        """Return the log position at which the dispatch must begin so that no unit or index entry
        is missing."""
        log_min = self.log.min_offset
        start = built_to if index.dispatch_from < 0 else min(built_to, index.dispatch_from)
        known = {state.key: state for state in states}
        excluded = batch_topics(self.root)
        # A database has its own position.
        spans = {} if self.in_rocksdb else list_spans(scan, in_rocksdb=False)
        for key, span in spans.items():
            state = known.get(key)
            if key.topic in excluded:
                continue
            if state is None or state.kept_offset < 0:
                if span.first_offset > 0:
                    start = log_min
            elif state.kept_offset < span.first_offset:
                start = min(start, max(state.kept_end, log_min))
        for state in states:
            if state.is_broken:
                start = min(start, max(state.kept_end, log_min))
        if start not in (built_to, log_min) and not self._is_border(start):
            return log_min
        return max(start, log_min)
