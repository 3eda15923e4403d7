"""Flat file: an ordered list of segments of one type, which grows at its end. Offsets are bytes of
the whole file. A segment's base offset is the file offset of its first byte. Layout and names:
`docs/formats/tier-layout.md`. Metadata: `docs/formats/metadata.md`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from itertools import takewhile
from typing import Final

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS, STATUS_DELETED, MetadataStore
from tieredstore.contracts.segment import (
    Buffer,
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.errors import Busy, Corrupt, Invalid, TieredStoreError, Unavailable
from tieredstore.message.layout import MIN_RECORD_SIZE
from tieredstore.tier.flat.appender import (
    AppendResult,
    SegmentAppender,
    SegmentDamaged,
    TailDiffers,
)
from tieredstore.tier.flat.confirmation import Confirmation
from tieredstore.tier.flat.deletion import Deletions, mark_deleted
from tieredstore.tier.flat.segments import FlatSegment, FlatSegments, open_segments

DEFAULTS: Final = StoreConfig()
_MAX_GIVEN_UP = 4
"""Maximum number of segments that one commit ends because they have bytes of another writer, or
have lost bytes. The remaining bytes then wait for the next commit."""
_log = logging.getLogger(__name__)


def find_most_pending(config: StoreConfig, preferred_bytes: int) -> int:
    """Return the number of messages that may be appended before a commit. `preferred_bytes`: write
    size that the provider prefers, or 0."""
    if not preferred_bytes:
        return config.max_group_commit_count
    # One write of that size must fit, however small the messages are.
    gathered = preferred_bytes // MIN_RECORD_SIZE + config.group_commit_count
    return max(config.max_group_commit_count, gathered)


def _trust() -> None:
    """Skip the epoch check, for files that no other process can own."""


class FlatAppendFile(FlatSegments):
    """Segments in ascending order of base offset. Only the last segment is written. Bytes are first
    appended (in memory), then stored (in the segment), then committed (visible to readers and in
    the metadata). Readers take no lock. They see the current list and commit positions.

    `confirmation`: commits the stored bytes. Files that commit together share it.
    `deletions`: deletions of the whole broker.
    `is_listed_whole`: set if the metadata has every listed segment. A new segment then cannot exist
    yet, and needs no check.
    `lock`: serialises appends, commits, rolls and expiry. Several files may share it.
    """

    __slots__ = (
        "_appender",
        "_clock",
        "_closed",
        "_config",
        "_confirmation",
        "_deletions",
        "_is_doubted",
        "_lock",
        "_metadata",
        "_pending_begin_ms",
        "_pending_end_ms",
        "_provider",
        "_suspect_base",
        "_tail_from_before",
        "is_listed_whole",
        "path",
        "type",
    )
    unit_bytes = 1

    def __init__(
        self,
        path: str,
        type: FileSegmentType,
        provider: SegmentProvider,
        metadata: MetadataStore,
        *,
        config: StoreConfig = DEFAULTS,
        clock: Clock = SYSTEM_CLOCK,
        lock: threading.RLock | None = None,
        confirmation: Confirmation | None = None,
        deletions: Deletions | None = None,
    ) -> None:
        super().__init__()
        self.path = path
        self.type = type
        self._provider = provider
        self._metadata = metadata
        self._config = config
        self._clock = clock
        self._lock = lock if lock is not None else threading.RLock()
        self._confirmation = confirmation if confirmation is not None else Confirmation(_trust)
        self._confirmation.join(self)
        self._deletions = deletions if deletions is not None else Deletions(metadata)
        self._appender: SegmentAppender | None = None
        self._tail_from_before = False
        self._closed = False
        self.is_listed_whole = False
        self._suspect_base: int | None = None
        self._is_doubted = False
        self._pending_begin_ms = NEVER_WRITTEN_MS
        self._pending_end_ms = NEVER_WRITTEN_MS

    @property
    def is_rewritable(self) -> bool:
        """Whether bytes may be written again at their position (`Capabilities.rewritable`)."""
        return self._provider.capabilities.rewritable

    # Where it ends

    @property
    def append_offset(self) -> int:
        """Offset after the last appended byte, 0 without segments."""
        segments, appender = self.segments, self._appender
        if not segments:
            return 0
        if appender is None:
            return segments[-1].end_offset
        return segments[-1].base_offset + appender.append_position

    @property
    def stored_offset(self) -> int:
        """Offset after the last stored byte, 0 without segments."""
        segments, appender = self.segments, self._appender
        if not segments or appender is None:
            return self.commit_offset
        return segments[-1].base_offset + appender.stored_position

    # Opening

    def recover(self, listings: Mapping[SegmentId, SegmentListing] | None = None) -> None:
        """Load the segments of the metadata, with their real sizes in the backend. The last segment
        has its real size. Any other segment ends where the next one begins, or at the smaller of
        its recorded and real size if it does not reach that offset. `listings`: a listing of at
        least all segments of the path, which saves requests for sizes. Writes nothing. Raises
        Unavailable, and Corrupt for an invalid base offset."""
        segments = open_segments(
            self.path, self.type, self._provider, self._metadata, listings, self.unit_bytes
        )
        with self._lock:
            self.segments = segments
            self._appender = None

    def cut(self, offset: int) -> None:
        """End the file at `offset`, which must be in the last segment. Call this after `recover`.
        The next commit overwrites any bytes after `offset`, or compares them with its own."""
        with self._lock:
            last = self.segments[-1]
            if not last.base_offset <= offset <= last.end_offset:
                raise Invalid(
                    f"{last.file.id}: cut at {offset}, outside [{last.base_offset}, "
                    f"{last.end_offset}]"
                )
            last.commit_position = offset - last.base_offset
            if last.commit_position == 0:
                last.begin_ms = last.end_ms = NEVER_WRITTEN_MS
            self._appender = None

    def init_offset(self, offset: int) -> None:
        """Create the first segment at `offset`. No-op if a segment exists. Raises Corrupt if the
        metadata or the backend already has bytes for this file, or Unavailable if this cannot be
        determined."""
        with self._lock:
            if self.segments:
                return
            for entry in list(self._metadata.segments(self.path, self.type)):
                if entry.status == STATUS_DELETED or entry.base_offset == offset:
                    continue
                if entry.size:
                    raise Corrupt(
                        f"{entry.id}: the metadata has {entry.size} bytes of a queue that it does "
                        "not list. Rebuild the metadata before writing",
                        path=self.path,
                    )
                self._metadata.delete_segment(entry.id)  # of an attempt that failed
            self.segments = (self._create(offset),)
            self._appender = None

    def undo_init(self) -> None:
        """Undo `init_offset` by removing the only segment, if it is empty. Its metadata entry may
        remain."""
        with self._lock:
            if len(self.segments) == 1 and self.append_offset == self.segments[0].base_offset:
                self.segments = ()
                self._appender = None

    def _create(self, offset: int) -> FlatSegment:
        """Register a new, empty segment in the metadata. Raises Busy while a segment with the same
        name is being deleted."""
        new_id = SegmentId(self.path, self.type, offset)
        with self._deletions.hold(new_id):
            return self._create_held(new_id)

    def _create_held(self, new_id: SegmentId) -> FlatSegment:
        entry = self._metadata.segment(new_id)
        if entry is None and self.is_listed_whole:
            file = self._provider.open(new_id, SegmentListing(new_id, 0))
        else:
            file = self._provider.open(new_id)
            if entry is not None and entry.status == STATUS_DELETED:
                file.delete()
            elif (size := file.size()) > 0:
                raise Corrupt(
                    f"{new_id}: the tier {self._provider.url} holds {size} bytes that the metadata "
                    "does not know of. Rebuild the metadata before writing",
                    path=self.path,
                    offset=new_id.base_offset,
                )
        segment = FlatSegment(file)
        self._metadata.put_segment(segment.metadata(self._clock.now_ms()))
        return segment

    # Writing

    @property
    def appender(self) -> SegmentAppender | None:
        """Appender of the last segment. None if nothing was appended."""
        return self._appender

    @property
    def room_bytes(self) -> int:
        """Bytes that still fit in the last segment."""
        return self.find_writer().room_bytes

    @property
    def is_last_empty(self) -> bool:
        """Whether nothing was appended to the last segment."""
        return not self.segments or self.find_writer().append_position == 0

    def find_writer(self) -> SegmentAppender:
        """Return the appender of the last segment, with current limits. Raises Invalid without
        segments."""
        appender = self._appender
        if appender is None:
            with self._lock:
                if not self.segments:
                    raise Invalid(f"{self.path}/{self.type.name}: need to set base offset")
                last = self.segments[-1]
                self._tail_from_before = last.real_size_bytes > last.commit_position
                appender = self._appender = SegmentAppender(
                    last.file,
                    self._provider.capabilities,
                    max_size_bytes=self._find_max_size_bytes(),
                    stored_position=last.commit_position,
                    unsure=self._tail_from_before,
                )
        appender.write_size_bytes = self._config.group_commit_size_bytes
        appender.max_pending_count = self._find_max_pending_count()
        return appender

    def _find_max_size_bytes(self) -> int:
        return self._config.commit_log_max_size_bytes

    def _find_max_pending_count(self) -> int:
        return find_most_pending(self._config, self._provider.capabilities.preferred_batch_bytes)

    def append(
        self,
        buffer: Buffer,
        count: int = 1,
        begin_ms: int = NEVER_WRITTEN_MS,
        end_ms: int = NEVER_WRITTEN_MS,
    ) -> AppendResult:
        """Append a buffer of `count` messages (or units) to the last segment, by reference. Their
        store times are in [begin_ms, end_ms]. FILE_FULL means that the caller must `roll`, and
        BUFFER_FULL that it must `commit`."""
        with self._lock:
            if self._closed:
                return AppendResult.FILE_CLOSED
            self._settle_entries()
            result = self.find_writer().append(buffer, count)
            if result is AppendResult.SUCCESS and begin_ms != NEVER_WRITTEN_MS:
                never = self._pending_begin_ms == NEVER_WRITTEN_MS
                self._pending_begin_ms = min(self._pending_begin_ms, begin_ms)
                self._pending_end_ms = end_ms if never else max(self._pending_end_ms, end_ms)
            return result

    def commit(self) -> bool:
        """Store the appended bytes and commit them, together with the stored bytes of the files
        that share the confirmation. Returns False if another commit is running or the file is
        closed. Raises the errors of `store` and `Confirmation.commit_stored`."""
        if not self.store():
            return False
        self._confirmation.commit_stored()
        return True

    def store(self, companion: FlatAppendFile | None = None, *, may_wait: bool = False) -> bool:
        """Store the appended bytes. Returns False if another call is running or the file is closed.
        `companion`: a file whose bytes must not be stored before these. A paired provider stores
        both with the last write. `may_wait`: as in `SegmentAppender.store`.

        If stored bytes were lost, or are followed by bytes that no owner of the epoch wrote, the
        segment ends there and a new one begins. Reading lost bytes raises Corrupt, but new bytes
        are safe. Raises the errors of `SegmentAppender.store`.
        """
        other = companion if self._provider.capabilities.paired else None
        for _ in range(_MAX_GIVEN_UP):
            appender = self._appender
            if self._closed:
                return False
            if appender is None:
                return True
            try:
                beside = other.appender if other is not None else None
                return appender.store(beside, may_wait=may_wait)
            except TailDiffers as error:
                self._check_replaceable(error)
                problem: TieredStoreError = error
            except SegmentDamaged as error:
                _log.error("%s. A new segment continues behind the stored bytes", error)
                problem = error
            self._go_on_in_new_segment(appender)
        raise Unavailable(f"{problem}, {_MAX_GIVEN_UP} times", path=self.path)

    def _check_replaceable(self, error: TailDiffers) -> None:
        if error.stale or self._tail_from_before:
            return
        if self._provider.capabilities.conditional:
            # The next write reports the other writer.
            raise Unavailable(str(error), offset=error.offset, path=error.path) from error
        raise error

    def settle(self, offset: int) -> None:
        """Commit the bytes stored below `offset`, and record them in the metadata. If that fails,
        they stay uncommitted. Called by `Confirmation`."""
        with self._lock:
            appender = self._appender
            if appender is None or offset <= self.commit_offset:
                return
            last = self.segments[-1]
            before = last.commit_position
            last.extend_times(self._pending_begin_ms, self._pending_end_ms)
            last.commit_position = min(offset - last.base_offset, appender.stored_position)
            try:
                self._metadata.put_segment(last.metadata(self._clock.now_ms()))
            except BaseException:
                last.commit_position = before
                raise
            if appender.append_position == last.commit_position:
                self._pending_begin_ms = self._pending_end_ms = NEVER_WRITTEN_MS

    def _go_on_in_new_segment(self, appender: SegmentAppender) -> None:
        """End the last segment after its stored bytes and continue in a new one. This is needed if
        the provider cannot rewrite bytes, and the segment has lost bytes or ends with bytes of
        another writer."""
        with self._lock:
            self._confirmation.commit_stored()  # this segment gets nothing more
            last = self.segments[-1]
            if last.commit_position:
                self._roll_to(last.end_offset)
            else:
                last.file.delete()
                last.file.close()
                last.file = self._provider.open(last.file.id)
                last.real_size_bytes = 0
                self._appender = None
            # Only now, so that the buffers stay pending if any of this fails.
            writer = self.find_writer()
            for view, count in appender.pending:
                writer.append(view, count)

    def trim(self) -> None:
        """Cut off any bytes after the last stored byte, if the provider supports it. Raises
        Unavailable."""
        if self.segments:
            self.find_writer().trim()

    def rollback(self, offset: int | None = None) -> None:
        """Drop the bytes that are appended but not stored. If `offset` is below the stored offset,
        the bytes of the last segment from `offset` on no longer count as stored. The next commit
        overwrites them, or compares them with its own."""
        with self._lock:
            appender = self._appender
            if appender is None and offset is None:
                return
            if not self.segments:
                return
            appender, last = self.find_writer(), self.segments[-1]
            appender.rollback(None if offset is None else offset - last.base_offset)
            last.commit_position = min(last.commit_position, appender.stored_position)
            # The bytes after it may be our own abandoned ones. Other messages can replace them.
            self._tail_from_before = True
            if last.commit_position == appender.stored_position:
                self._pending_begin_ms = self._pending_end_ms = NEVER_WRITTEN_MS

    def roll(self, offset: int | None = None) -> None:
        """Begin a new segment at `offset` (default: the append offset). The segment is registered
        in the metadata before its first byte is written. An empty last segment is replaced. Raises
        Busy if appended bytes are not committed, and Invalid for an offset below the append
        offset."""
        with self._lock:
            at = self.append_offset if offset is None else offset
            if at < self.append_offset:
                raise Invalid(
                    f"{self.path}/{self.type.name}: roll at {at} is inside the stored bytes"
                )
            if self.append_offset != self.commit_offset:
                raise Busy(f"{self.path}/{self.type.name}: roll before everything is committed")
            self._roll_to(at)

    def doubt_entries(self) -> None:
        """Record that a write of metadata entries failed. The next append first writes them to
        disk."""
        with self._lock:
            self._is_doubted = True

    def _settle_entries(self) -> None:
        """Write all metadata entries to disk, and undo the entry of a failed roll. Without this,
        the next process would see a segment that this process never used."""
        if self._is_doubted:
            with self._metadata.batch():
                pass  # everything is on disk at the end of the block
            self._is_doubted = False
        base = self._suspect_base
        if base is not None:
            last = self.segments[-1]
            with self._metadata.batch():
                self._metadata.delete_segment(SegmentId(self.path, self.type, base))
                self._metadata.put_segment(last.metadata(self._clock.now_ms()))
            self._suspect_base = None

    def _roll_to(self, offset: int) -> None:
        self._settle_entries()
        last = self.segments[-1]
        if last.base_offset == offset:
            return
        replaced = last.commit_position == 0
        if not replaced:
            self.find_writer().trim()
        now_ms = self._clock.now_ms()
        self._suspect_base = offset
        with self._metadata.batch():
            # First, because readers use the recorded size of every segment but the last.
            if not replaced:
                self._metadata.put_segment(last.metadata(now_ms))
            new = self._create(offset)
            if replaced:
                self._metadata.put_segment(last.metadata(now_ms, STATUS_DELETED))
        self._suspect_base = None
        self.segments = (*self.segments[:-1], new) if replaced else (*self.segments, new)
        self._appender = None
        if replaced:
            self._deletions.remove([last.file])
            return
        try:
            last.file.seal()
        except (Unavailable, Corrupt) as error:
            _log.warning("%s: not sealed: %s", last.file.id, error)

    # Ending

    def roll_if_expired(self, before_ms: int) -> bool:
        """Begin a new segment if the last one is committed and all of its messages are older than
        `before_ms`. `expire` can then delete the old segment. Offsets continue in the new one
        (Java's do not). Returns whether a segment was begun."""
        with self._lock:
            if not self.segments or self.append_offset != self.commit_offset:
                return False
            last = self.segments[-1]
            if last.commit_position == 0 or not last.is_expired(before_ms):
                return False
            self.roll()
            return True

    def expire(self, before_ms: int) -> list[SegmentId]:
        """Delete the first segments whose newest message is older than `before_ms`, except the last
        segment of the file. Each deletion is tried once. If it fails, the segment's entry stays
        marked as deleted for `FlatFileStore.sweep_deleted`. Returns the removed segments."""
        victims = self.take_expired(before_ms)
        self._deletions.remove(victims)
        return [file.id for file in victims]

    def take_expired(self, before_ms: int, most: int | None = None) -> list[FileSegment]:
        """Remove the segments that `expire` would delete from the file, and mark them as deleted in
        the metadata. The caller deletes them without holding a lock. `most`: maximum number of
        segments (None: no limit)."""
        with self._lock:
            segments = self.segments
            count = 0
            last = len(segments) - 1 if most is None else min(most, len(segments) - 1)
            while count < last and segments[count].is_expired(before_ms):
                count += 1
            return self._take_out(count)

    def find_expired(self, before_ms: int) -> list[FlatSegment]:
        """Return the segments that `roll_if_expired` and `expire` would delete if all bytes were
        committed."""
        segments = self.segments
        found = list(takewhile(lambda segment: segment.is_expired(before_ms), segments))
        if len(found) == len(segments) and found and not found[-1].commit_position:
            found.pop()  # there is nothing to roll
        return found

    def rebase(self, offset: int) -> None:
        """Move the start of an empty file to another offset, which may be lower. Raises Invalid if
        the file has content, and Busy while a segment with the new name is being deleted."""
        with self._lock:
            segments = self.segments
            if len(segments) != 1 or self.append_offset != segments[0].base_offset:
                raise Invalid(
                    f"{self.path}/{self.type.name}: begin at {offset} of the stored bytes"
                )
            self._roll_to(offset)

    def take_all(self) -> list[FileSegment]:
        """Close the file, remove all segments and mark them as deleted, like `take_expired`."""
        with self._lock:
            self.close()
            return self._take_out(len(self.segments))

    def _take_out(self, count: int) -> list[FileSegment]:
        victims = self.segments[:count]
        if victims:
            mark_deleted(self._metadata, victims, self._clock.now_ms())
            self.segments = self.segments[count:]
        return [segment.file for segment in victims]

    def close(self) -> None:
        """Reject further appends and commits, and release the segments' handles. Idempotent."""
        with self._lock:
            self._closed = True
            if self._appender is not None:
                self._appender.close()
            for segment in self.segments:
                segment.file.close()
