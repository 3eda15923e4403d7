"""File of checksums next to a segment's file. The checksums are written after the segment's bytes
and are not synced. After a crash they may therefore cover fewer bytes than the segment has, but
never more. A truncation changes the checksums first. `docs/formats/block-checksums.md` has the
format, and shows why no state of this file makes good bytes unreadable."""

from __future__ import annotations

import errno
import logging
import os
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from tieredstore.contracts.block_checksums import DamagedBlock
from tieredstore.contracts.segment import Buffer, FileSegmentType, SegmentId
from tieredstore.disk.at_hand import require_waiting
from tieredstore.disk.errors import RETRY_LATER, wrap_os_errors
from tieredstore.message.crc import raw_crc32
from tieredstore.providers import naming
from tieredstore.providers.checks import total_bytes
from tieredstore.providers.posix import block_sums
from tieredstore.providers.posix.block_sums import (
    BLOCK_BYTES,
    HEAD_BYTES,
    BlockEntry,
    BlockSums,
    decode_sums,
    encode_sums,
    entry_position,
)
from tieredstore.providers.posix.calls import PosixCalls

PREFIX: Final = "."
SUFFIX: Final = ".crc32"
CACHE_BYTES: Final = 32 << 20
_MOST_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 4 << 20
_UNREADABLE: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EIO}
)
_log = logging.getLogger(__name__)


def sums_path(segment_path: str) -> str:
    """Return the path of the checksum file of the segment at a path."""
    directory, _, name = segment_path.rpartition("/")
    return f"{directory}/{PREFIX}{name}{SUFFIX}"


class Loaded(NamedTuple):
    """Checksums in memory. `state`: status of the checksum file when it was read, or None if it was
    missing."""

    sums: BlockSums
    state: tuple[int, int, int] | None


class SumCache:
    """LRU cache of checksums in memory. Thread-safe."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[str, Loaded] = OrderedDict()
        self._held_bytes = 0

    def get(self, path: str) -> Loaded | None:
        # Without the lock, which would cost as much as everything else.
        try:
            self._held.move_to_end(path)
            return self._held[path]
        except KeyError:  # evicted, maybe between the two lines
            return None

    def put(self, path: str, loaded: Loaded) -> None:
        with self._lock:
            self._drop(path)
            self._held[path] = loaded
            self._held_bytes += loaded.sums.memory_bytes
            self._make_room()

    def extend(self, path: str, entries: Sequence[BlockEntry]) -> None:
        """Add the entries of a write to the checksums of its segment, if they are cached."""
        with self._lock:
            loaded = self._held.get(path)
            if loaded is not None:
                self._held_bytes -= loaded.sums.memory_bytes
                loaded.sums.put(entries)
                self._held_bytes += loaded.sums.memory_bytes

    def learn(self, path: str, index: int, piece_crcs: array[int]) -> None:
        """Store the CRCs of a block's pieces, if the checksums of its segment are cached."""
        with self._lock:
            loaded = self._held.get(path)
            if loaded is not None:
                self._held_bytes -= loaded.sums.memory_bytes
                loaded.sums.piece_crcs[index] = piece_crcs
                self._held_bytes += loaded.sums.memory_bytes
                self._make_room()

    def forget(self, path: str) -> None:
        with self._lock:
            self._drop(path)

    def _make_room(self) -> None:
        while self._held_bytes > self._limit_bytes and len(self._held) > 1:
            _, loaded = self._held.popitem(last=False)
            self._held_bytes -= loaded.sums.memory_bytes

    def _drop(self, path: str) -> None:
        loaded = self._held.pop(path, None)
        if loaded is not None:
            self._held_bytes -= loaded.sums.memory_bytes


class SegmentSums:
    """Checksums of one open segment. Reads may run during a write. Only one write may run at a
    time.

    `path`: path of the segment.
    `is_durable`: whether a truncation of the checksums is synced.
    """

    __slots__ = (
        "_cache",
        "_calls",
        "_end",
        "_file",
        "_fresh",
        "_frozen",
        "_id",
        "_is_durable",
        "_path",
        "_segment_path",
        "_tail_crc",
    )

    def __init__(
        self, id: SegmentId, path: str, calls: PosixCalls, cache: SumCache, *, is_durable: bool
    ) -> None:
        self._id = id
        self._segment_path = path
        self._path = sums_path(path)
        self._calls = calls
        self._cache = cache
        self._is_durable = is_durable
        self._end: int | None = None
        self._file: int | None = None  # descriptor, from `begin_write` to `end_write` at most
        self._tail_crc = 0
        self._frozen: BlockEntry | None = None
        self._fresh: BlockSums | None = None

    # Reading

    def find(self, end: int) -> BlockSums:
        """Return the checksums of the bytes before `end`. The checksum file is read again if it may
        have grown. Raises OSError."""
        loaded = self._cache.get(self._path)
        if loaded is None or (loaded.sums.size_bytes < end and loaded.state != self._find_state()):
            return self.load()
        return loaded.sums

    def find_nowait(self) -> BlockSums | None:
        """Return the checksums if they are in memory, else None."""
        loaded = self._cache.get(self._path)
        return None if loaded is None else loaded.sums

    def learn(self, index: int, piece_crcs: array[int]) -> None:
        """Store the result of `compute_piece_crcs` for a block that matched its checksum."""
        self._cache.learn(self._path, index, piece_crcs)

    def load(self) -> BlockSums:
        """Read the checksum file. A file that is missing, unreadable or of another format covers no
        bytes. Raises OSError."""
        try:
            return self._load()
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            _log.warning("%s: %s is read without it: %s", self._path, self._id, error)
            self._cache.put(self._path, Loaded(BlockSums(), self._find_state()))
            return BlockSums()

    def _load(self) -> BlockSums:
        require_waiting()
        try:
            fd = self._calls.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return self._take_in(None, None)
        try:
            return self._load_open(fd)
        finally:
            self._calls.close(fd)

    def _load_to_write(self) -> BlockSums:
        """Read the checksum file, and keep it open for `extend` if it is writable."""
        try:
            self._file = self._calls.open(self._path, os.O_RDWR)
        except OSError:
            return self._load()
        return self._load_open(self._file)

    def _load_open(self, fd: int) -> BlockSums:
        state = _make_state(self._calls.fstat(fd))
        data = self._read_some(fd, 0, min(state[1], _MOST_BYTES))
        return self._take_in(decode_sums(data), state)

    def _take_in(self, sums: BlockSums | None, state: tuple[int, int, int] | None) -> BlockSums:
        sums = sums if sums is not None else BlockSums()
        self._cache.put(self._path, Loaded(sums, state))
        return sums

    def set_aside(self, sums: BlockSums) -> None:
        """Ignore the checksums until their file changes, because they belong to another segment."""
        _log.warning(
            "%s: set aside: these are checksums of other bytes than %s has (%d blocks)",
            self._path, self._id, len(sums.lengths),
        )  # fmt: skip
        self._cache.put(self._path, Loaded(BlockSums(), self._find_state()))

    def is_foreign(self, sums: BlockSums, fd: int) -> bool:
        """Return whether checksums that do not match may belong to an earlier segment of the same
        name that Java has deleted and recreated. Such a segment was modified after its checksums
        and begins with other times. A consume queue has no times, so only its modification time
        counts. Raises OSError."""
        if self._calls.fstat(fd).st_mtime_ns == sums.modified_ns:
            return False
        if self._id.type is FileSegmentType.CONSUME_QUEUE:
            return True
        return not sums.is_of(self._read_some(fd, 0, len(sums.head)))

    # Writing

    def begin_write_anew(self) -> None:
        """Prepare the first write to a new segment."""
        if self._end != 0:
            self._cache.forget(self._path)
            self._begin_anew(0)
            self._fresh = BlockSums()

    def begin_write(self, fd: int, position: int, size: int, modified_ns: int) -> None:
        """Prepare a write at `position` of a segment with `size` bytes and the given modification
        time. The checksums from `position` on are dropped before the bytes change. `end_write` must
        follow. Raises OSError."""
        if self._end == position == size:
            return
        self._end = None
        try:
            self._resume(fd, position, modified_ns)
        except OSError as error:
            if position < size:
                self.delete()  # raises if that fails too
            _log.warning("%s: cannot continue: %s", self._path, error)

    def end_write(self) -> None:
        """End a write that `begin_write` has prepared, whether or not it succeeded."""
        if self._file is not None:
            self._calls.close(self._file)
            self._file = None

    def extend(self, fd: int, position: int, buffers: Sequence[Buffer]) -> None:
        """Write the checksums of new bytes of the segment. On failure these bytes have no
        checksums."""
        if self._end != position:
            return
        entries, crc = block_sums.compute_entries(position, buffers, self._tail_crc)
        if entries and self._frozen is not None and entries[0].block == self._frozen.block:
            entries[0] = self._frozen
        try:
            if not entries:
                pass
            elif self._fresh is None:
                modified_ns = self._calls.fstat(fd).st_mtime_ns
                data = block_sums.encode_entries(entries, modified_ns)
                self._write_at(data, entry_position(entries[0].block))
                self._cache.extend(self._path, entries)
            else:
                head = self._fresh.head or _find_head(position, buffers)
                self._write_fresh(fd, head, self._fresh, entries)
        except OSError as error:
            self._end = None
            self._cache.forget(self._path)
            _log.warning(
                "%s: bytes of the segment from %d on have no checksums: %s",
                self._path, position, error,
            )  # fmt: skip
            return
        self._end = position + total_bytes(buffers)
        self._tail_crc = crc

    def sync(self) -> None:
        """Sync the written checksums to disk. Raises OSError."""
        with suppress(FileNotFoundError), self._opened(os.O_RDWR) as fd:
            self._calls.sync(fd)

    def delete(self) -> None:
        """Delete the checksum file. Call this before the segment's own file is deleted. Raises
        OSError."""
        self._end = None
        try:
            self._calls.unlink(self._path)
        except FileNotFoundError:
            pass
        finally:
            self._cache.forget(self._path)

    def cover(self, fd: int, size: int) -> tuple[BlockSums, list[DamagedBlock]]:
        """Compute checksums for all blocks that have none. Return the checksums and the blocks that
        do not match. Raises OSError."""
        self._end = None
        modified_ns = self._calls.fstat(fd).st_mtime_ns
        sums, bad, entries = self._compare(fd, size)
        if bad and self.is_foreign(sums, fd):
            sums, bad = BlockSums(), []
        damaged = {block.start // BLOCK_BYTES for block in bad}
        if not sums.head:
            sums = BlockSums(self._read_some(fd, 0, HEAD_BYTES))
        if sums.size_bytes > size:
            sums.cut(size)
        sums.put([entry for entry in entries if entry.block not in damaged])
        if not bad:
            sums.modified_ns = modified_ns
        with self._opened(os.O_RDWR | os.O_CREAT) as file:
            data = encode_sums(sums)
            self._write_all(file, data, 0)
            self._calls.truncate(file, len(data))
            if self._is_durable:
                self._calls.sync(file)
        self._cache.forget(self._path)
        return sums, bad

    def check(self, fd: int, size: int) -> tuple[BlockSums, list[DamagedBlock]]:
        """Verify all blocks of the segment. Raises OSError."""
        sums, bad, _ = self._compare(fd, size)
        return sums, bad

    def _compare(
        self, fd: int, size: int
    ) -> tuple[BlockSums, list[DamagedBlock], list[BlockEntry]]:
        sums = self.load()
        bad: list[DamagedBlock] = []
        entries: list[BlockEntry] = []
        for start in range(0, size, _PIECE_BYTES):
            data = memoryview(self._read_some(fd, start, min(_PIECE_BYTES, size - start)))
            bad += find_bad_blocks(sums, start, start + len(data), data, start)
            entries += block_sums.compute_entries(start, [data], 0)[0]
        return sums, bad, entries

    # Internal

    def _begin_anew(self, position: int) -> None:
        self._fresh, self._end, self._tail_crc, self._frozen = None, position, 0, None

    def _resume(self, fd: int, position: int, modified_ns: int) -> None:
        """Prepare to extend the checksums at `position`, the new end of the segment. The existing
        bytes of this block are trusted unless they differ from their checksum."""
        # Other readers may still read checksums that this process cannot read.
        sums = self._load_to_write()
        is_kept = modified_ns == sums.modified_ns
        if not is_kept and not self._is_trusted(sums, fd):
            sums = BlockSums()
        index, length = divmod(position, BLOCK_BYTES)
        start, entry = index * BLOCK_BYTES, sums.entry(index)
        data = memoryview(self._read_some(fd, start, max(length, entry.length)))
        bad = find_bad_blocks(sums, start, start + 1, data, start)
        if position < sums.size_bytes:
            self._cut_file(index)
            sums.cut(position)
            is_kept = False
        self._begin_anew(position)
        self._tail_crc = raw_crc32(data[:length])
        if bad and entry.length <= length:
            self._frozen = entry
        if not is_kept:
            head = sums.head if position >= len(sums.head) else b""
            self._fresh = BlockSums(head, None, sums.lengths, sums.crcs)

    def _is_trusted(self, sums: BlockSums, fd: int) -> bool:
        """Return whether checksums belong to a segment that was modified after them, by Java or
        before a crash."""
        if self._id.type is not FileSegmentType.CONSUME_QUEUE:
            return sums.is_of(self._read_some(fd, 0, len(sums.head)))
        size = self._calls.fstat(fd).st_size
        return not sums.lengths or not self._compare(fd, size)[1]

    def _cut_file(self, index: int) -> None:
        with suppress(FileNotFoundError), self._opened(os.O_RDWR) as file:
            self._calls.truncate(file, entry_position(index))
            if self._is_durable:
                self._calls.sync(file)
        self._cache.forget(self._path)

    def _write_fresh(
        self, fd: int, head: bytes, sums: BlockSums, entries: list[BlockEntry]
    ) -> None:
        sums.head = head or self._read_some(fd, 0, HEAD_BYTES)
        sums.modified_ns = self._calls.fstat(fd).st_mtime_ns
        sums.put(entries)
        self._write_anew(encode_sums(sums))
        self._fresh = None
        self._cache.put(self._path, Loaded(sums, None))

    def _write_at(self, data: bytes, position: int) -> None:
        if self._file is not None:
            self._write_all(self._file, data, position)
            return
        with self._opened(os.O_RDWR) as fd:
            self._write_all(fd, data, position)

    def _write_anew(self, data: bytes) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        try:
            fd = self._calls.open(self._path, flags)
        except PermissionError:  # another user's, who sealed: replace it by one of our own
            self._calls.unlink(self._path)
            fd = self._calls.open(self._path, flags)
        try:
            self._write_all(fd, data, 0)
        finally:
            self._calls.close(fd)

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        fd = self._calls.open(self._path, flags)
        try:
            yield fd
        finally:
            self._calls.close(fd)

    def _find_state(self) -> tuple[int, int, int] | None:
        try:
            found = self._calls.stat(self._path)
        except FileNotFoundError:
            return None
        return _make_state(found)

    def _read_some(self, fd: int, position: int, length: int) -> bytes:
        pieces: list[bytes] = []
        while length > 0:
            piece = self._calls.read(fd, length, position)
            if not piece:
                break
            pieces.append(piece)
            position, length = position + len(piece), length - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _write_all(self, fd: int, data: bytes, position: int) -> None:
        count = self._calls.write(fd, [data], position)
        view = memoryview(data)
        while count < view.nbytes:
            if count <= 0:
                raise OSError(f"no progress at {position}")
            view, position = view[count:], position + count
            count = self._calls.write(fd, [view], position)


def _make_state(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _find_head(position: int, buffers: Sequence[Buffer]) -> bytes:
    """Return the first bytes of a segment if one written buffer contains them."""
    first = memoryview(buffers[0]).cast("B") if buffers and not position else b""
    return bytes(first[:HEAD_BYTES]) if len(first) >= HEAD_BYTES else b""


def find_bad_blocks(
    sums: BlockSums, start: int, end: int, data: memoryview, data_start: int
) -> list[DamagedBlock]:
    """Return the blocks that touch [start, end), are complete in `data`, and do not match their
    checksums. `data`: bytes of the segment from `data_start`. Incomplete blocks are skipped,
    because their checksums may cover more bytes."""
    bad = []
    first, behind = start // BLOCK_BYTES, -(-end // BLOCK_BYTES)
    begin = first * BLOCK_BYTES - data_start  # of a block, in the data
    size, least_end = data.nbytes, start - data_start
    for length, crc in zip(sums.lengths[first:behind], sums.crcs[first:behind], strict=False):
        stop = begin + length
        if begin >= 0 and least_end < stop <= size and length:
            found = raw_crc32(data[begin:stop])
            if found != crc:
                bad.append(DamagedBlock(begin + data_start, stop + data_start, crc, found))
        begin += BLOCK_BYTES
    return bad


def delete_orphans(directory: str, calls: PosixCalls) -> int:
    """Delete checksum files below a broker's folder whose segments are gone. Return their number.
    Raises Unavailable."""
    deleted = 0
    for folder, _, names in os.walk(directory):
        there = set(names)
        for name in names:
            segment = name.removeprefix(PREFIX).removesuffix(SUFFIX)
            if name != f"{PREFIX}{segment}{SUFFIX}" or segment in there:
                continue
            if naming.parse_segment_file_name(segment) is not None:
                path = f"{folder}/{name}"
                with wrap_os_errors("delete", path, invalid=RETRY_LATER):
                    with suppress(FileNotFoundError):
                        calls.unlink(path)
                    deleted += 1
    return deleted
