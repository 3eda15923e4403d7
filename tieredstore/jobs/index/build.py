"""Distribution of rows among index files by store time, and the build of each file."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Invalid
from tieredstore.jobs.index.rows import ROW_DTYPE, StagedRows, read_rows, read_times
from tieredstore.jobs.index.staging import StagedFile, Staging
from tieredstore.message.index.compaction import compact_items
from tieredstore.message.index.tiered import (
    ITEM_DTYPE,
    MAGIC_END,
    IndexHeader,
    compacted_size,
    pack_header,
    time_diff_seconds,
)

_BLOCK_ITEMS = 1 << 18
_SORT_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Capacity:
    """Slots and items of index files, as configured for the brokers that read them. A file has at
    most `max_items` - 1 items. Raises Invalid if files could exceed 2 GiB."""

    slots: int
    max_items: int

    def __post_init__(self) -> None:
        if compacted_size(self.slots, self.max_items) >= 1 << 31:
            raise Invalid(
                "tieredStoreIndexFileMaxHashSlotNum and tieredStoreIndexFileMaxIndexNum: expected "
                "a compacted file below 2 GiB, found "
                f"{compacted_size(self.slots, self.max_items)} bytes"
            )

    @classmethod
    def of(cls, config: StoreConfig) -> Capacity:
        return cls(config.index_file_max_hash_slot_num, config.index_file_max_index_num)

    @property
    def items(self) -> int:
        return self.max_items - 1

    @property
    def block_rows(self) -> int:
        """Maximum number of rows of a block: a sixteenth of a full index file, so that files are
        filled evenly."""
        return max(1, self.items // 16)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [first, first + count) of a staged file."""

    file: StagedFile
    rows: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Share:
    """Rows of one index file, all stored at `first_ms` or later."""

    pieces: tuple[Piece, ...]
    first_ms: int

    @property
    def items(self) -> int:
        return sum(piece.count for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class BuildTask:
    share: Share
    begin_ms: int
    slots: int
    staging: Staging

    @property
    def key(self) -> str:
        """Key of the task in the journal. Tasks with the same rows of the same staged files have
        the same key."""
        digest = hashlib.sha256(f"{self.begin_ms} {self.slots}".encode())
        for piece in self.share.pieces:
            digest.update(f" {piece.file} {piece.first} {piece.count}".encode())
        return digest.hexdigest()[:16]

    @property
    def size_bytes(self) -> int:
        return compacted_size(self.slots, self.share.items)


@dataclass(frozen=True, slots=True)
class BuiltIndex:
    """A compacted index file in the staging folder."""

    file: StagedFile
    items: int
    begin_ms: int
    end_ms: int


def shares(staged: Sequence[StagedRows], capacity: Capacity) -> Iterator[Share]:
    """Yield the shares of full files by store time, then the remaining rows. Blocks are assigned by
    their first store time, so the times of two files overlap by at most a block. Only a block that
    does not fit into a file is divided."""
    if not staged:
        return
    times = np.concatenate([np.array(s.first_ms, dtype=np.int64) for s in staged])
    owners = np.repeat(np.arange(len(staged)), [len(s.first_ms) for s in staged])
    firsts = np.concatenate([np.arange(len(s.first_ms)) * s.block_rows for s in staged])
    pieces: list[Piece] = []
    room = capacity.items
    first_ms = 0
    for i in np.argsort(times, kind="stable").tolist():
        owner = staged[owners[i]]
        first = int(firsts[i])
        left = min(owner.block_rows, owner.rows - first)
        while left:
            if not pieces:
                first_ms = int(times[i])
            count = min(left, room)
            pieces.append(Piece(owner.file, owner.rows, first, count))
            first, left, room = first + count, left - count, room - count
            if room == 0:
                yield Share(_join_pieces(pieces), first_ms)
                pieces, room = [], capacity.items
    if pieces:
        yield Share(_join_pieces(pieces), first_ms)


def _join_pieces(pieces: list[Piece]) -> tuple[Piece, ...]:
    found: list[Piece] = []
    for piece in sorted(pieces, key=lambda p: (p.file.path, p.file.number, p.first)):
        last = found[-1] if found else None
        if last and last.file == piece.file and last.first + last.count == piece.first:
            found[-1] = replace(last, count=last.count + piece.count)
        else:
            found.append(piece)
    return tuple(found)


def begin_times(first_times: Sequence[int], taken: Collection[int]) -> list[int]:
    """Choose names for files whose rows begin at the given times. The names are distinct and not in
    `taken`, because Java identifies a file by its name."""
    taken = set(taken)
    begins = []
    for first_ms in first_times:
        begin_ms = max(first_ms, 1)
        while begin_ms in taken:
            begin_ms += 1
        taken.add(begin_ms)
        begins.append(begin_ms)
    return begins


def build(task: BuildTask) -> BuiltIndex:
    """Build the compacted file of a share. As in a broker's file, the newest items come first
    within a slot. Memory: about 50 bytes per item and 10 per slot. Raises Invalid, Unavailable."""
    with closing(task.staging.location.connect()) as provider:
        items, end_ms = _items(provider, task)
        header = IndexHeader(
            task.begin_ms, max(end_ms, 0), _slots_used(items, task.slots), len(items), MAGIC_END
        )
        blocks = compact_items(
            items,
            task.slots,
            first_position=compacted_size(task.slots, 0),
            block_items=_BLOCK_ITEMS,
            memory_bytes=_SORT_BYTES,
        )
        content = chain([pack_header(header)], blocks)
        file = task.staging.write(provider, f"file-{task.key}", content)
    return BuiltIndex(file, len(items), header.begin_timestamp_ms, header.end_timestamp_ms)


def _items(provider: SegmentProvider, task: BuildTask) -> tuple[np.ndarray, int]:
    """Return the items sorted by store time, as ITEM_DTYPE[n], and the latest store time."""
    pieces = task.share.pieces
    times = np.concatenate([read_times(provider, p.file, p.first, p.count) for p in pieces])
    order = np.argsort(times, kind="stable")  # The runs are sorted, so this merges them.
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    times = times[order]
    del order
    items = np.zeros(len(times), ITEM_DTYPE)
    items["time_diff_seconds"] = time_diff_seconds(times, task.begin_ms)
    heads: np.ndarray = np.ndarray(
        len(items), np.dtype((np.void, ROW_DTYPE.itemsize)), items.data, strides=items.strides
    )
    done = 0
    for piece in pieces:
        rows = read_rows(provider, piece.file, piece.rows, piece.first, piece.count)
        heads[places[done : done + piece.count]] = rows.view(heads.dtype)
        done += piece.count
    return items, int(times[-1])


def _slots_used(items: np.ndarray, slots: int) -> int:
    used = np.zeros(slots, dtype=np.bool_)
    for start in range(0, len(items), 1 << 20):
        used[items["hash"][start : start + (1 << 20)].astype(np.int64) % slots] = True
    return int(np.count_nonzero(used))
