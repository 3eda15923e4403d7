"""The INDEX segments of a broker: listing, upload, expiry. Their base offsets are sums of sizes, as
in Java's layout. Begin and end in a segment's metadata are the times of its index file
(`docs/formats/tier-layout.md`, `docs/formats/metadata.md`)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tieredstore.clock import Clock
from tieredstore.contracts.metadata_store import (
    NEVER_WRITTEN_MS,
    FileSegmentMetadata,
    MetadataStore,
)
from tieredstore.contracts.segment import (
    Buffer,
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.sync import sync_file
from tieredstore.errors import Corrupt, Fenced, TieredStoreError, Unavailable
from tieredstore.message.index.tiered import HEADER_SIZE, compact, compacted_size
from tieredstore.message.names import index_path
from tieredstore.tier.index.local_file import LocalIndexStoreFile
from tieredstore.tier.index.uploaded_file import UploadedIndexStoreFile, check_whole, header_of
from tieredstore.tier.sure_writes import write_surely

PIECE_BYTES = 8 << 20
MAX_PIECE_BYTES = 64 << 20
WRITE_ATTEMPTS = 3

_log = logging.getLogger(__name__)


class UploadableIndex(Protocol):
    """Compacted file to upload, with its size (bytes) and its begin and end time (epoch ms). Files
    are compared by object identity."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def begin_ms(self) -> int: ...
    @property
    def end_ms(self) -> int: ...

    def pieces(self, start: int, length: int) -> Iterator[tuple[int, Buffer]]:
        """Yield the content from position `start` on, as pairs of position and bytes. Each piece
        but the last has `length` bytes. Raises Unavailable, or Corrupt if the file is too short."""


@dataclass(frozen=True, slots=True)
class CompactedIndex:
    """Compacted file on local disk, with its path, size (bytes), begin and end timestamp."""

    path: Path
    size_bytes: int
    begin_ms: int
    end_ms: int

    def pieces(self, start: int, length: int) -> Iterator[tuple[int, Buffer]]:
        """Yield pieces like `UploadableIndex.pieces`."""
        position = start
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                while position < self.size_bytes:
                    piece = file.read(min(length, self.size_bytes - position))
                    if not piece:
                        raise Corrupt(
                            f"{self.path}: expected {self.size_bytes} bytes, found {position}",
                            path=str(self.path),
                            offset=position,
                        )
                    yield position, piece
                    position += len(piece)
        except OSError as error:
            raise translate_os_error(error, "read", self.path, invalid=RETRY_LATER) from error


@dataclass(slots=True)
class _Progress:
    index_file: UploadableIndex
    base_offset: int
    position: int


class IndexSegments:
    """Uploaded part of the index. Only one thread at a time may change it. `confirm_writer`:
    function like `WriterEpoch.confirm`, called before stored bytes are recorded in the metadata."""

    def __init__(
        self,
        provider: SegmentProvider,
        metadata: MetadataStore,
        broker_name: str,
        clock: Clock,
        confirm_writer: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = index_path(broker_name)
        self._provider = provider
        self._metadata = metadata
        self._clock = clock
        self._confirm_writer = confirm_writer
        self._progress: _Progress | None = None

    def load(self, *, is_writer: bool = True) -> list[UploadedIndexStoreFile]:
        """Open all segments that contain an index file, in ascending order of base offset. A
        registered segment without a recorded size is used if its bytes are complete, and the tier's
        writer then records the size. Otherwise the next upload overwrites it."""
        listings = self._listings()
        files = []
        for entry in self._entries():
            adopted = entry if entry.size > 0 else self._adopt(entry, is_writer=is_writer)
            if adopted is not None:
                segment = self._provider.open(entry.id, listings.get(entry.id))
                files.append(UploadedIndexStoreFile(segment, adopted))
        return files

    def upload(
        self, index_file: UploadableIndex, is_ending: Callable[[], bool] = lambda: False
    ) -> UploadedIndexStoreFile:
        """Write a compacted file as the next segment, in pieces, and record it durably. After a
        failure, or if `is_ending` returned True before a piece, the next call continues where this
        one stopped. Raises Unavailable if the upload should be retried later. Raises Fenced if
        another writer holds the position, and Corrupt if the file or the existing bytes are
        wrong."""
        entry = self._announce()
        segment = self._provider.open(entry.id)
        try:
            self._write(segment, index_file, entry.base_offset, is_ending)
            self._confirm_writer()
            entry.size = index_file.size_bytes
            entry.begin_timestamp_ms = index_file.begin_ms
            entry.end_timestamp_ms = index_file.end_ms
            self._metadata.put_segment(entry)
            # The local copy is removed next, so sizes and times must be on disk now.
            self._metadata.flush()
            _seal(segment)
        finally:
            segment.close()
        self._progress = None
        return self._file(entry)

    def expire(
        self,
        before_ms: int,
        drop: Callable[[int], object],
        is_ending: Callable[[], bool] = lambda: False,
    ) -> int:
        """Remove the first segments whose end is before `before_ms`, until the caller stops.
        Returns the number of removed segments. `drop`: called with the base offset of each segment
        before its removal. Segments that are registered but not written stay, because their upload
        is in progress. Raises Unavailable if a segment could not be removed, after earlier ones
        were removed."""
        count = 0
        for entry in self._entries():
            if entry.size <= 0 or entry.end_timestamp_ms >= before_ms or is_ending():
                break
            drop(entry.base_offset)
            with contextlib.closing(self._provider.open(entry.id)) as segment:
                segment.delete()
            self._metadata.delete_segment(entry.id)
            count += 1
        return count

    def _listings(self) -> dict[SegmentId, SegmentListing]:
        """Return the listings of the segments on an object store, so that they need not be checked
        one by one. Empty for other backends."""
        if not self._provider.capabilities.conditional or not self._entries():
            return {}
        try:
            return {item.id: item for item in self._provider.list(self.path)}
        except Unavailable as error:
            _log.warning("%s: not listed: %s", self.path, error)
            return {}

    def _entries(self) -> list[FileSegmentMetadata]:
        return list(self._metadata.segments(self.path, FileSegmentType.INDEX))

    def _file(self, entry: FileSegmentMetadata) -> UploadedIndexStoreFile:
        return UploadedIndexStoreFile(self._provider.open(entry.id), entry)

    def _adopt(self, entry: FileSegmentMetadata, *, is_writer: bool) -> FileSegmentMetadata | None:
        segment = self._provider.open(entry.id)
        with contextlib.closing(segment):
            try:
                size = segment.size()
                if size <= HEADER_SIZE:
                    return None
                header = header_of(segment, segment.read(0, HEADER_SIZE))
                check_whole(segment, size, header)
            except Corrupt as error:
                _log.warning("unfinished index segment, to be written again: %s", error)
                return None
        entry.size = size
        entry.begin_timestamp_ms = header.begin_timestamp_ms
        entry.end_timestamp_ms = header.end_timestamp_ms
        if is_writer:
            self._confirm_writer()
            self._metadata.put_segment(entry)
        return entry

    def _announce(self) -> FileSegmentMetadata:
        """Return the metadata entry of the segment to write: the last entry if its segment is
        unwritten, otherwise a new one."""
        entries = self._entries()
        last = entries[-1] if entries else None
        if last is not None and last.size <= 0:
            return last
        base = 0 if last is None else last.base_offset + last.size
        segment_id = SegmentId(self.path, FileSegmentType.INDEX, base)
        with contextlib.closing(self._provider.open(segment_id)) as segment:
            found = segment.size()
        if found > 0:
            raise Corrupt(
                f"{segment_id}: expected no such segment, found {found} bytes that the metadata "
                "lacks. Rebuild the metadata",
                path=str(segment_id),
                offset=base,
            )
        now_ms = self._clock.now_ms()
        entry = FileSegmentMetadata(
            self.path,
            FileSegmentType.INDEX,
            base,
            create_timestamp_ms=now_ms,
            begin_timestamp_ms=NEVER_WRITTEN_MS,
            end_timestamp_ms=now_ms,  # Java's expiry deletes segments without it
        )
        self._metadata.put_segment(entry)
        return entry

    def _write(
        self,
        segment: FileSegment,
        index_file: UploadableIndex,
        base_offset: int,
        is_ending: Callable[[], bool],
    ) -> None:
        progress = self._progress
        if (
            progress is None
            or progress.index_file != index_file
            or progress.base_offset != base_offset
        ):
            start = (
                0
                if self._provider.capabilities.rewritable
                else _keep_common_start(segment, index_file)
            )
            progress = self._progress = _Progress(index_file, base_offset, start)
        size = progress.position
        for position, piece in index_file.pieces(progress.position, self._piece_bytes()):
            if is_ending():
                raise Unavailable(
                    f"{segment.id}: stopped at {position} of {index_file.size_bytes} bytes. The "
                    "next upload continues",
                    path=str(segment.id),
                    offset=position,
                )
            try:
                size = self._write_piece(segment, position, piece)
            except TieredStoreError:
                if is_segment_lost(segment, position):
                    self._progress = None
                raise
            progress.position = position + len(piece)
        if size != index_file.size_bytes:
            self._progress = None
            raise Unavailable(
                f"{segment.id}: expected {index_file.size_bytes} bytes after the upload, "
                f"found {size}",
                path=str(segment.id),
                offset=size,
            )

    def _piece_bytes(self) -> int:
        preferred = self._provider.capabilities.preferred_batch_bytes
        return min(max(preferred, PIECE_BYTES), MAX_PIECE_BYTES)

    def _write_piece(self, segment: FileSegment, position: int, piece: Buffer) -> int:
        """Write a piece. Returns the size of the segment afterwards (bytes)."""
        rewritable = self._provider.capabilities.rewritable
        outcome = write_surely(
            segment, position, [piece], rewritable=rewritable, attempts=WRITE_ATTEMPTS
        )
        if outcome.sure_bytes == len(piece):
            return outcome.size_bytes
        refused = outcome.refused
        if refused is None:
            message = (
                f"{segment.id}: write of {len(piece)} bytes at {position} has no known outcome: "
                f"{outcome.reason}"
            )
        elif refused.stale:
            self._progress = None  # the next attempt compares from the start
            message = (
                f"{segment.id}: at {position} are other bytes, of writer {refused.writer}, which "
                "was fenced. The segment is written again"
            )
        else:
            raise Fenced(
                f"{segment.id}: expected to write at {position}, found {refused.size_bytes} "
                f"bytes of writer {refused.writer}",
                path=str(segment.id),
                offset=position,
            )
        raise Unavailable(message, path=str(segment.id), offset=position)


def is_segment_lost(segment: FileSegment, position: int) -> bool:
    """Return whether bytes that were written before `position` are certainly lost."""
    try:
        return segment.size() < position
    except TieredStoreError:
        return False


def _seal(segment: FileSegment) -> None:
    """Seal a complete segment. An object store may then combine its objects into one."""
    try:
        segment.seal()
    except Unavailable as error:
        _log.warning("%s: not sealed: %s", segment.id, error)


def _keep_common_start(segment: FileSegment, index_file: UploadableIndex) -> int:
    """Return the position at which an upload may continue, on a backend that cannot overwrite
    bytes. If the existing bytes of the segment differ from the start of the file, the segment is
    deleted."""
    size = segment.size()
    if size <= index_file.size_bytes:
        for position, piece in index_file.pieces(0, PIECE_BYTES):
            length = min(len(piece), size - position)
            if length <= 0:
                return size
            if segment.read(position, length) != piece[:length]:
                break
        else:
            return size
    segment.delete()
    return 0


def compact_file(file: LocalIndexStoreFile, directory: Path) -> CompactedIndex:
    """Write the compacted form of a sealed file to `directory/<begin>`, with the same bytes as
    Java. If a failed upload left a complete file there, it is used. Raises Unavailable if the disk
    fails or is full."""
    size = compacted_size(file.slots, file.item_count)
    path = directory / str(file.begin_ms)
    compacted = CompactedIndex(path, size, file.begin_ms, file.end_ms)
    try:
        if path.exists() and path.stat().st_size == size:
            return compacted
        directory.mkdir(exist_ok=True)
        temporary = FILES.name_temporary(path)
        try:
            with temporary.open("wb") as target:
                for block in compact(file.buffer, file.slots):
                    target.write(block)
                target.flush()
                sync_file(target.fileno())
            temporary.replace(path)
        except OSError:
            FILES.discard(temporary)
            raise
    except OSError as error:
        raise translate_os_error(error, "compact", path, invalid=RETRY_LATER) from error
    return compacted
