"""Finds what a recovery has to do, without writing anything.

`docs/local-store.md` says which rules decide.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.index.reader import IndexShape
from tieredstore.local.log.commit_log import find_log_directory
from tieredstore.local.log.file_names import file_name
from tieredstore.local.log.foreign_log import ForeignCommitLog
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue import round_up_to_units
from tieredstore.local.queues.consume_queue_store import batch_topics
from tieredstore.local.queues.kinds import is_rocksdb
from tieredstore.local.recovery.checkpoint import CHECKPOINT_FILE, Checkpoint, read_checkpoint
from tieredstore.local.recovery.index_look import IndexLook, look_at_index
from tieredstore.local.recovery.log_scan import (
    EndCause,
    LogScan,
    QueueSpan,
    RecordsBehind,
    find_record_fault,
    find_records_behind,
    has_lost_sector,
)
from tieredstore.local.recovery.plan import QueueBuild, RecoveryPlan
from tieredstore.local.recovery.queue_look import (
    QueueLook,
    cut_queue,
    has_data,
    look_at_queues,
)
from tieredstore.local.recovery.store_lock import has_abort_file
from tieredstore.message.columns.walk import Stop, walk_records
from tieredstore.message.layout import MAGICS, MAX_STORE_TIMESTAMP_END
from tieredstore.message.record import StoredMessage

TIME_SLACK_MS: Final = 3_000
"""Java's: the times of a checkpoint are taken to be this much earlier."""


def plan_recovery(
    root: str | Path,
    config: StoreConfig,
    *,
    full: bool = False,
    is_clean: bool | None = None,
    with_index: bool = True,
) -> RecoveryPlan:
    """Find what a recovery of the store in a folder has to do. Writes nothing.

    full: check every record, and build all queues and the index anew from the log. is_clean:
    whether the store was stopped cleanly, where that is known otherwise than from its `abort` file.
    with_index: whether the index counts; who only reads queues leaves it alone. Raises Corrupt for
    damage that no recovery mends (a commit log file that is missing between others, files of
    another size than the configuration's), Invalid for queues without a log.
    """
    files = PositionalFiles(writable=False)
    try:
        planner = _Planner(
            Path(root), config, files, full=full, is_clean=is_clean, with_index=with_index
        )
        return planner.make()
    finally:
        files.close()


class _Planner:
    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        files: PositionalFiles,
        *,
        full: bool,
        is_clean: bool | None,
        with_index: bool,
    ) -> None:
        self.root = root
        self.config = config
        self.files = files
        self.full = full
        self.with_index = with_index
        self.was_clean = not has_abort_file(root) if is_clean is None else is_clean
        self.warnings: list[str] = []
        self.log_directory = find_log_directory(config, root)
        self.log = ForeignCommitLog(self.log_directory, files)
        self.in_rocksdb = is_rocksdb(config)
        self.shape = IndexShape(config.max_hash_slot_num, config.max_index_num)

    def make(self) -> RecoveryPlan:
        self.log.refresh()
        self._check_file_size()
        log = self.log
        before = self._read_checkpoint()
        queue_file_size = round_up_to_units(self.config.mapped_file_size_consume_queue_bytes)
        looks: list[tuple[QueueLook, Any]] = []
        if not self.in_rocksdb:
            looks = look_at_queues(
                self.root,
                self.files,
                queue_file_size,
                log.min_offset,
                # Anew from the log: then a queue file may be of any length.
                is_clean=self.was_clean and not self.full,
            )
        self._check_log_is_there(looks)
        is_sure = self.was_clean and not self.full
        sure = self._find_sure_offset(before, looks)
        check_from = max(sure, log.min_offset)
        scan = LogScan(
            log, check_from, force_prop_crc=self.config.force_verify_prop_crc, with_queues=True
        )
        end = scan.end
        behind = find_records_behind(log, end.offset)
        consent = self._explain_loss(before, scan, behind)
        # What a store left behind that was stopped cleanly counts up to the end of its log.
        cut_at = end.offset if is_sure else min(check_from, end.offset)
        index = IndexLook(end_timestamp_ms=before.index_msg_timestamp_ms)
        if self.with_index and not is_sure:
            index = self._look_at_index(before, cut_at, end.offset)
        cuts = []
        for look, queue in looks:
            cut = cut_queue(look, queue, self.files, cut_at, is_unsure=not is_sure)
            if cut is not None:
                cuts.append(cut)
        built_to = cut_at
        kept = before.logics_physical_offset
        # A database knows by itself where to go on; Java's leaves no position in the checkpoint.
        if is_sure and (kept or not self.in_rocksdb):
            known = max((look.kept_end for look, _ in looks), default=kept)
            built_to = min(max(min(kept or known, known), log.min_offset), end.offset)
        dispatch_from = self._find_dispatch_from(built_to, scan, [look for look, _ in looks], index)
        after = replace(
            before,
            logics_physical_offset=dispatch_from,
            index_msg_timestamp_ms=min(before.index_msg_timestamp_ms, index.end_timestamp_ms),
        )
        if dispatch_from == 0:  # where 0 means "not known", and the times count
            after.logics_msg_timestamp_ms = 0
        # A database of queues has no holes: what was lost of it was lost at its end.
        units_until = end.offset if self.in_rocksdb and not self.full else cut_at
        wipe_path, wipe_position, delete, cut_bytes = self._find_rest(end.offset)
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
            self._list_log_files(check_from, end.offset),
            dispatch_from,
            () if is_sure and self.in_rocksdb else self._list_builds(scan.queues, looks),
            before,
            after,
            consent,
            tuple(self.warnings),
        )

    def _check_file_size(self) -> None:
        run, expected = self.log.run, self.config.mapped_file_size_commit_log_bytes
        if run.offsets and run.file_size != expected:
            path = str(self.log.path_of(run.start))
            raise Corrupt(
                f"{path}: expected a file of {expected} bytes, found {run.file_size}", path=path
            )

    def _read_checkpoint(self) -> Checkpoint:
        try:
            return read_checkpoint(self.root)
        except Corrupt as error:
            self.warnings.append(f"{error}; taken as unknown")
            return Checkpoint()

    def _check_log_is_there(self, looks: list[tuple[QueueLook, Any]]) -> None:
        if not self.log.run.offsets and any(look.kept_end for look, _ in looks):
            raise Invalid(
                f"{self.root}: there are consume queues but no commit log", path=str(self.root)
            )

    def _find_sure_offset(self, before: Checkpoint, looks: list[tuple[QueueLook, Any]]) -> int:
        """The byte of the log up to which records and units are known to be on disk."""
        log = self.log
        has_units = any(look.max_offset > look.start_offset for look, _ in looks)
        if self.full or not (has_units or self.in_rocksdb):
            return log.min_offset
        kept = before.logics_physical_offset
        if kept > 0:
            if kept <= log.min_offset:
                return log.min_offset
            if self._is_border(kept):
                return self._step_back(min(kept, log.readable_offset), looks)
            self.warnings.append(
                f"{self.root / CHECKPOINT_FILE}: dispatch position {kept}: no message begins or "
                "ends there; the times count"
            )
        limit_ms = before.flushed_timestamp_ms - TIME_SLACK_MS
        if self.in_rocksdb:  # nothing of Java's moves the other time then
            limit_ms = before.physic_msg_timestamp_ms - TIME_SLACK_MS
        for offset in reversed(log.run.offsets):
            data = log.get(offset, MAX_STORE_TIMESTAMP_END)
            if data is None:
                continue
            head = StoredMessage(data, 0, len(data))
            if head.magic in MAGICS and 0 < head.store_timestamp_ms <= limit_ms:
                return offset
        return log.min_offset

    def _step_back(self, offset: int, looks: list[tuple[QueueLook, Any]]) -> int:
        """The offset, or where the last message in front of it begins when that one is damaged: a
        torn tail is found though it was on disk once."""
        last: tuple[int, int, int] | None = None
        for look, queue in looks:
            kept = look.max_offset
            if look.kept_end > offset:
                kept = queue.find_cut(offset)
            unit = queue.unit(kept - 1)
            if unit is not None and unit[1] > 0 and unit[0] + unit[1] <= offset:
                last = unit if last is None or unit[0] > last[0] else last
        if last is None or last[0] < self.log.min_offset:
            return offset
        record = self.log.get(last[0], last[1])
        if record is not None and find_record_fault(record, last[0]) is None:
            return offset
        return last[0]

    def _is_border(self, offset: int) -> bool:
        """Whether a message begins or ends at a byte of the log."""
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
        if record is not None and find_record_fault(record, offset) is None:
            return True
        file_begin = offset - offset % log.file_size
        if offset == file_begin:
            return True
        walk = walk_records(log.rest_of_file(file_begin)[: offset - file_begin])
        return walk.stop is Stop.END

    def _explain_loss(self, before: Checkpoint, scan: LogScan, behind: RecordsBehind) -> str:
        """Why a cut at the scan's end needs somebody's consent, empty when it does not."""
        end = scan.end
        if behind.records == 0:
            return ""
        text = (
            f"{self.log.path_of(end.offset)}: {end.cause.value} at {end.offset}, and behind it, "
            f"from {behind.first_offset} on, {behind.records} valid messages "
            f"({behind.size_bytes} bytes), which a recovery cuts off"
        )
        was_flushed = (
            end.offset < before.logics_physical_offset
            or 0 < behind.first_timestamp_ms < before.physic_msg_timestamp_ms
        )
        is_unwritten = end.cause is EndCause.UNWRITTEN or has_lost_sector(
            self.log, end.offset, behind.first_offset
        )
        if not was_flushed and is_unwritten:
            self.warnings.append(
                f"{text}: a write in front of them was lost with the power, or with the process in "
                "the middle of a batch, so none of them was promised to be there"
            )
            return ""
        detail = f" ({end.detail})" if end.detail else ""
        return f"{text}{detail}"

    def _look_at_index(self, before: Checkpoint, cut_at: int, log_end: int) -> IndexLook:
        is_built = self.config.message_index_enable
        flushed_ms, sure_offset = before.index_msg_timestamp_ms, log_end
        if is_built:  # else entries are put behind what stays, once `messageIndexEnable` is true
            sure_offset = min(cut_at, before.logics_physical_offset)
            if self.full:
                flushed_ms, sure_offset = -1, 0
        return look_at_index(
            self.root,
            self.files,
            self.shape,
            flushed_timestamp_ms=flushed_ms,
            sure_offset=sure_offset,
            log_min_offset=self.log.min_offset,
            is_built=is_built,
        )

    def _find_dispatch_from(
        self, built_to: int, scan: LogScan, looks: list[QueueLook], index: IndexLook
    ) -> int:
        """From where on the log has to be dispatched so that no unit and no entry is missing."""
        log_min = self.log.min_offset
        start = built_to if index.dispatch_from < 0 else min(built_to, index.dispatch_from)
        known = {look.key: look for look in looks}
        excluded = batch_topics(self.root)
        spans = {} if self.in_rocksdb else scan.queues  # the database knows where to go on
        for key, span in spans.items():
            look = known.get(key)
            if key.topic in excluded:
                continue
            if look is None or look.kept_offset < 0:
                if span.first_offset > 0:
                    start = log_min
            elif look.kept_offset < span.first_offset:
                start = min(start, max(look.kept_end, log_min))
        for look in looks:
            if look.is_broken:
                start = min(start, max(look.kept_end, log_min))
        if start not in (built_to, log_min) and not self._is_border(start):
            return log_min
        return max(start, log_min)

    def _find_rest(self, end: int) -> tuple[str, int, tuple[str, ...], int]:
        """What lies behind the end of the log: the file and position to wipe from, the files that
        go, and how many bytes there are up to the last that is not zero."""
        log, files = self.log, self.files
        wipe_path, position, last_data = "", 0, end
        delete = []
        for offset in log.run.offsets:
            path = str(log.path_of(offset))
            if offset + log.file_size <= end:
                continue
            inside = max(end - offset, 0)
            if has_data(files, path, inside, log.file_size):
                last_data = offset + _last_data(files, path, inside, log.file_size)
                if offset < end or offset == log.min_offset:
                    wipe_path, position = path, inside
            if offset >= end and offset > log.min_offset:
                delete.append(path)
        empty = self.log_directory / file_name(log.run.end)
        if empty.exists():  # a last file of length 0: the listing has left it out
            delete.append(str(empty))
        return wipe_path, position, tuple(delete), last_data - end

    def _list_log_files(self, start: int, end: int) -> tuple[str, ...]:
        log = self.log
        return tuple(
            str(log.path_of(offset))
            for offset in log.run.offsets
            if offset + log.file_size > start and offset < max(end, start + 1)
        )

    def _list_builds(
        self, spans: dict[QueueKey, QueueSpan], looks: list[tuple[QueueLook, Any]]
    ) -> tuple[QueueBuild, ...]:
        kept = {look.key: look.kept_offset for look, _ in looks}
        builds = []
        for key, span in sorted(spans.items()):
            start = kept.get(key, -1)
            start = span.first_offset if start < 0 else min(start, span.end_offset)
            if start < span.end_offset:
                builds.append(QueueBuild(*key, start, span.end_offset))
        return tuple(builds)


def _last_data(files: PositionalFiles, path: str, position: int, end: int) -> int:
    """Behind the last byte of a file that is not zero."""
    last = position
    while (position := files.skip_hole(path, position)) < end:
        data = files.read_up_to(path, min(1 << 20, end - position), position)
        if not data:
            break
        kept = len(data.rstrip(b"\0"))
        if kept:
            last = position + kept
        position += len(data)
    return last
