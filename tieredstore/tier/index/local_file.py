"""Index file on local disk that is being written. It is memory-mapped, queried in place, and
compacted at the end. Layout and capacity are Java's (`docs/formats/tiered-index.md`). A put writes
items, then slots, then the header, so that chains stay valid if the process is killed in between.
`repair` corrects slots and header at the next start."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.sync import allocate, sync_file, sync_folder
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.message.core import IS_COMPILED
from tieredstore.message.index.chains import link_previous
from tieredstore.message.index.tiered import (
    HEADER_SIZE,
    MAGIC_BEGIN,
    MAGIC_END,
    SCALAR_LIMIT,
    SLOT_SIZE,
    IndexHeader,
    item_position,
    items_view,
    pack_header,
    put_few_items,
    put_items,
    slots_view,
    unpack_header,
    unsealed_size,
)
from tieredstore.tier.index.index_file import (
    MAX_CHAIN_ITEMS,
    IndexItem,
    IndexStatus,
    IndexStoreFile,
    Wanted,
)

_BLOCK_ITEMS = 1 << 20


def valid_items(items: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return a mask of the items that may be valid: size above 0 and hash not negative."""
    valid: npt.NDArray[np.bool_] = (items["size"] > 0) & (items["hash"] >= 0)
    return valid


def relink(
    heads: npt.NDArray[np.int32],
    items: npt.NDArray[np.void],
    count: int,
    trusted: int,
) -> int:
    """Rebuild the slot heads, and the chains of items `trusted` + 1 to `count`. Items up to
    `trusted` are on disk with their links, so a head that points to one of them is correct. Only
    differences are written.

    `heads`: number of the first item of each slot, a view of the file.
    `items`: the items by number, a view of the file.

    Returns the number of slots in use.
    """
    right = heads.astype(np.int32)
    unsure = (right > trusted) | (right < 0)
    right[unsure] = 0
    if trusted and unsure.any():
        _find_heads(right, unsure, items, trusted)
    for start in range(trusted + 1, count + 1, _BLOCK_ITEMS):
        block = items[start : min(start + _BLOCK_ITEMS, count + 1)]
        rows = np.flatnonzero(valid_items(block))
        numbers = (rows + start).astype(np.int32)
        slot_ids = block["hash"][rows].astype(np.int64) % len(right)
        previous = link_previous(right, slot_ids, numbers)
        wrong = block["previous"][rows] != previous
        block["previous"][rows[wrong]] = previous[wrong]
        np.maximum.at(right, slot_ids, numbers)
    wrong_slots = np.flatnonzero(heads != right)
    heads[wrong_slots] = right[wrong_slots]
    return int(np.count_nonzero(right))


def _find_heads(
    right: npt.NDArray[np.int32],
    unsure: npt.NDArray[np.bool_],
    items: npt.NDArray[np.void],
    last: int,
) -> None:
    for start in range(1, last + 1, _BLOCK_ITEMS):
        block = items[start : min(start + _BLOCK_ITEMS, last + 1)]
        slot_ids = block["hash"].astype(np.int64) % len(right)
        rows = np.flatnonzero(unsure[slot_ids] & valid_items(block))
        np.maximum.at(right, slot_ids[rows], (rows + start).astype(np.int32))


WALK_ITEMS = 4096
"""Maximum number of items of a chain that a query follows. The rest of a longer chain is found by a
scan of all hashes."""
SCAN_ITEMS = 1 << 18
ALLOCATE_BYTES = 4 << 20

_ITEM = struct.Struct(">iiiqiii")


@dataclass(frozen=True, slots=True)
class IndexRows:
    """Keys of messages of one queue, one row per key. `hashes`: int32, as stored. Offsets and sizes
    are bytes in the queue's tiered commit log. `store_timestamps`: epoch ms."""

    hashes: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int32]
    store_timestamps: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, rows: slice | npt.NDArray[np.bool_]) -> IndexRows:
        return IndexRows(
            self.hashes[rows], self.offsets[rows], self.sizes[rows], self.store_timestamps[rows]
        )


class LocalIndexStoreFile(IndexStoreFile):
    """One memory-mapped index file. Only one thread at a time may put. Queries may run at the same
    time. The mapping exists as long as the object is referenced, so a query may continue after
    `destroy`.

    `item_count`: number of items.
    `synced_items`: number of items on disk.
    `covered_items`: number of items that were below the watermarks of their queues when the file
    was opened.
    """

    def __init__(self, path: Path, begin_ms: int, slots: int, max_items: int, fd: int) -> None:
        super().__init__(begin_ms, IndexStatus.UNSEALED)
        self.path = path
        self.slots = slots
        self.max_items = max_items
        self.synced_items = 0
        self.covered_items = 0
        self._fd = fd
        self._fd_lock = threading.Lock()
        self.buffer = memoryview(mmap.mmap(fd, unsealed_size(slots, max_items)))
        """Mapped bytes of the whole file."""
        self._heads = slots_view(self.buffer, slots)
        self._items = items_view(self.buffer, slots, max_items)
        self._allocated_end = 0
        start = bytes(self.buffer[:HEADER_SIZE])
        # A crash may leave a new file without header. It is empty then.
        header = unpack_header(start) if any(start) else IndexHeader(begin_ms)
        self.item_count = header.items
        self.end_ms = header.end_timestamp_ms
        self.slots_used = header.slots_used

    @classmethod
    def create(cls, path: Path, begin_ms: int, slots: int, max_items: int) -> LocalIndexStoreFile:
        """Create a file of full (sparse) size. Raises Unavailable."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _make_unavailable_error(path, "created", error) from error
        try:
            os.ftruncate(fd, unsealed_size(slots, max_items))
            made = cls(path, begin_ms, slots, max_items, fd)
            made._reserve(0)
        except BaseException as error:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()
            if isinstance(error, OSError | ValueError):
                raise _make_unavailable_error(path, "created", error) from error
            raise
        made._write_header()
        with wrap_os_errors("sync", path.parent):
            sync_folder(path.parent)
        return made

    @classmethod
    def open(cls, path: Path, slots: int, max_items: int) -> LocalIndexStoreFile:
        """Open a file by its name. Raises Corrupt for a wrong size or header, and Unavailable if
        the file cannot be opened."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise _make_unavailable_error(path, "opened", error) from error
        try:
            size, expected = os.fstat(fd).st_size, unsealed_size(slots, max_items)
            if size != expected:
                raise Corrupt(
                    f"{path}: expected {expected} bytes ({slots} slots, {max_items} items), "
                    f"found {size}",
                    path=str(path),
                    offset=size,
                )
            opened = cls(path, int(path.name), slots, max_items, fd)
            if not 0 <= opened.item_count < max_items:
                raise Corrupt(
                    f"{path} at 24: expected 0 to {max_items - 1} items, found {opened.item_count}",
                    path=str(path),
                    offset=24,
                )
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                raise _make_unavailable_error(path, "opened", error) from error
            if isinstance(error, Corrupt) and error.path is None:
                raise Corrupt(f"{path}: {error}", path=str(path), offset=error.offset) from error
            raise
        return opened

    @property
    def room(self) -> int:
        """Number of items that still fit into the file. Item 0 is never used."""
        if self.status is not IndexStatus.UNSEALED:
            return 0
        return self.max_items - 1 - self.item_count

    def put(self, topic_id: int, queue_id: int, rows: IndexRows) -> None:
        """Add as many rows as fit (`room`). Raises Unavailable. After an error no row is added."""
        count, room = len(rows), self.room
        assert 0 < count <= room
        self._reserve(count)
        if count < SCALAR_LIMIT and not IS_COMPILED:
            columns = (rows.hashes, rows.offsets, rows.sizes, rows.store_timestamps)
            few = list(zip(*(column.tolist() for column in columns), strict=True))
            header = put_few_items(self.buffer, self.slots, topic_id, queue_id, few)
        else:
            header = put_items(
                self.buffer,
                self.slots,
                rows.hashes,
                topic_id,
                queue_id,
                rows.offsets,
                rows.sizes,
                rows.store_timestamps,
            )
        self.item_count = header.items
        self.end_ms = header.end_timestamp_ms
        self.slots_used = header.slots_used
        if count == room:
            self.seal()

    def find(self, wanted: Wanted) -> list[IndexItem]:
        """Return matching items, newest first within a hash, at most `wanted.limit`. Raises Corrupt
        if a chain violates the format."""
        found: list[IndexItem] = []
        for key_hash in wanted.hashes:
            rest = 0
            if key_hash >= 0:
                walked, rest = self._walk(key_hash % self.slots)
                wanted.take(walked, key_hash, self.begin_ms, found)
            for items in self._scan(key_hash, rest):
                if len(found) >= wanted.limit:
                    break
                found += wanted.select(items, key_hash, self.begin_ms)
        return found[: wanted.limit]

    def sync(self) -> None:
        """Sync the file to disk. Raises Unavailable. After an error, the content must not be
        trusted."""
        count = self.item_count
        with self._fd_lock:
            if self._fd >= 0 and count != self.synced_items:
                with wrap_os_errors("sync", self.path):
                    sync_file(self._fd)
        self.synced_items = count

    def repair(self, synced_items: int) -> None:
        """Correct slots, chains and header after a crash. `synced_items`: number of items known to
        be on disk. Raises Unavailable if the disk is full."""
        count = self.item_count
        self._reserve(0)
        self.slots_used = relink(self._heads, self._items, count, min(synced_items, count))
        self.end_ms = self._true_end_ms()
        self.synced_items = min(synced_items, count)
        self._write_header()

    def items(self, first: int = 1) -> npt.NDArray[np.void]:
        """Return a view of the items, starting at item number `first`."""
        return self._items[first : self.item_count + 1]

    def valid_count(self) -> int:
        """Return the number of items that may be valid (`valid_items`)."""
        return int(np.count_nonzero(valid_items(self.items())))

    def close(self) -> None:
        """Close the file descriptor. The mapping stays until its last user has finished."""
        with self._fd_lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1
            super().close()

    def destroy(self) -> None:
        """Close and remove the file. Raises Unavailable if it cannot be removed."""
        self.close()
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise _make_unavailable_error(self.path, "removed", error) from error

    def _walk(self, slot: int) -> tuple[list[tuple[int, ...]], int]:
        """Return the newest items of a slot, and the number of the next item in the chain (0 at its
        end)."""
        walked: list[tuple[int, ...]] = []
        number, above = int(self._heads[slot]), self.max_items
        while number > 0:
            if number >= above:
                raise Corrupt(
                    f"{self.path}: slot {slot}: expected an item below {above}, found {number}",
                    path=str(self.path),
                    offset=HEADER_SIZE + slot * SLOT_SIZE,
                )
            if len(walked) == WALK_ITEMS:
                return walked, number
            item = _ITEM.unpack_from(self.buffer, item_position(self.slots, number))
            walked.append(item)
            above, number = number, item[6]
        return walked, 0

    def _scan(self, key_hash: int, last: int) -> Iterator[npt.NDArray[np.void]]:
        """Yield the items of a hash among items 1 to `last`, newest first, in blocks."""
        seen = WALK_ITEMS
        for stop in range(last + 1, 1, -SCAN_ITEMS):
            start = max(stop - SCAN_ITEMS, 1)
            rows = np.flatnonzero(self._items["hash"][start:stop] == key_hash)
            if len(rows):
                yield self._items[rows[::-1] + start]
                seen += len(rows)
                if seen >= MAX_CHAIN_ITEMS:
                    return

    def _reserve(self, count: int) -> None:
        end = item_position(self.slots, self.item_count + 1 + count)
        if end <= self._allocated_end:
            return
        limit = unsealed_size(self.slots, self.max_items)
        # Includes all slots the first time, because any of them may be written next.
        start = self._allocated_end
        end = min(end + ALLOCATE_BYTES, limit)
        with self._fd_lock:
            if self._fd < 0:
                raise Unavailable(f"{self.path}: the file is closed", path=str(self.path))
            with wrap_os_errors(f"reserve {end - start} bytes at {start}", self.path):
                allocate(self._fd, start, end - start)
        self._allocated_end = end

    def _true_end_ms(self) -> int:
        """Return the end time in the header, or a later time if an item is certainly later. Java
        loses the end time of a file when it restarts."""
        items = self.items()
        if not len(items):
            return self.end_ms
        seconds = int(items["time_diff_seconds"].max())
        earliest = self.begin_ms + seconds * 1000 - (0 if seconds > 0 else 999)
        latest = self.begin_ms + seconds * 1000 + (0 if seconds < 0 else 999)
        return latest if earliest > self.end_ms else self.end_ms

    def _write_header(self) -> None:
        full = self.item_count + 1 == self.max_items
        header = IndexHeader(
            self.begin_ms,
            self.end_ms,
            self.slots_used,
            self.item_count,
            MAGIC_END if full else MAGIC_BEGIN,
        )
        self.buffer[:HEADER_SIZE] = pack_header(header)


def _make_unavailable_error(path: Path, action: str, error: OSError | ValueError) -> Unavailable:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return Unavailable(f"{path}: cannot be {action}: {reason}", path=str(path))
