"""Looks up keys in the index files of a local store (`docs/formats/local-index.md`).

Files are read by position and never mapped. The owner and readers of another process's store share
this code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from tieredstore.disk.errors import translate_os_error
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.message.index import local as local_index
from tieredstore.message.index.local import (
    HEADER_SIZE,
    ITEM_DTYPE,
    ITEM_SIZE,
    SLOT_SIZE,
    LocalIndexHeader,
    LocalIndexItem,
)

INDEX_DIRECTORY: Final = "index"
_HEAD: Final = struct.Struct(">i")
_ITEM: Final = struct.Struct(">iqii")
_ITEMS_TRIED: Final = 512
_SEARCH_BYTES: Final = 64 << 20


class IndexShape(NamedTuple):
    """Number of hash slots and maximum number of items of each index file of a store."""

    slots: int
    max_items: int

    @property
    def size_bytes(self) -> int:
        return local_index.file_size(self.slots, self.max_items)


def index_paths(root: Path) -> list[str]:
    """Return the index files, oldest first. Names that are not numbers are skipped, as in Java."""
    directory = root / INDEX_DIRECTORY
    try:
        names = [path.name for path in directory.iterdir() if path.is_file()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise translate_os_error(error, "list", directory) from error
    return [str(directory / name) for name in sorted(names) if name.isascii() and name.isdigit()]


def read_header(files: PositionalFiles, path: str) -> LocalIndexHeader:
    """Return the current header of a file. Raises Corrupt."""
    try:
        return LocalIndexHeader.unpack(files.read(path, HEADER_SIZE, 0))
    except Corrupt as error:
        raise Corrupt(f"{path}: {error}", path=path) from error


def check_shape(files: PositionalFiles, path: str, shape: IndexShape) -> None:
    """Raise Corrupt if the size of a file does not match its number of slots and items."""
    size = files.size(path)
    if size != shape.size_bytes:
        raise Corrupt(
            f"{path}: expected {shape.size_bytes} bytes for {shape.slots} slots (maxHashSlotNum) "
            f"and {shape.max_items} items (maxIndexNum), found {size}",
            path=path,
        )


def check_last_item(files: PositionalFiles, path: str, shape: IndexShape) -> None:
    """Raise Corrupt if the header of a file contradicts its last item. New entries could otherwise
    be written to the wrong position or skipped."""
    header = read_header(files, path)
    last = header.index_count - 1
    if last == 0:
        return
    if header.index_count > shape.max_items or header.hash_slot_count > shape.slots:
        raise Corrupt(
            f"{path}: expected at most {shape.slots} slots in use and {shape.max_items} items, "
            f"found {header.hash_slot_count} and {header.index_count}",
            path=path,
        )
    position = HEADER_SIZE + shape.slots * SLOT_SIZE + last * ITEM_SIZE
    item = LocalIndexItem(last, *_ITEM.unpack(files.read(path, ITEM_SIZE, position)))
    expected = header.end_physical_offset, local_index.seconds_between(header)
    # The time of the first item is relative to the previous file.
    found = item.physical_offset, expected[1] if last == 1 else item.seconds
    if found != expected:
        raise Corrupt(
            f"{path}: the header says that the last message is at {expected[0]}, {expected[1]} "
            f"seconds after the first. Item {last} says {found[0]} and {found[1]}",
            path=path,
            offset=position,
        )


def candidates(
    files: PositionalFiles, path: str, shape: IndexShape, key_hash: int, begin_ms: int, end_ms: int
) -> Iterator[int]:
    """Yield the physical offsets of messages that may have the key, newest first. The hash of the
    key matches, and the store time may be in [begin_ms, end_ms]. Yields nothing if the file has
    expired and been deleted. Raises Corrupt if the file is too short."""
    try:
        yield from _walk(files, path, shape, key_hash, begin_ms, end_ms)
    except Unavailable:
        if Path(path).exists():
            raise


def _walk(
    files: PositionalFiles, path: str, shape: IndexShape, key_hash: int, begin_ms: int, end_ms: int
) -> Iterator[int]:
    header = read_header(files, path)
    if header.index_count <= 1 or header.end_timestamp_ms < begin_ms:
        return
    if header.begin_timestamp_ms > end_ms:
        return
    slot = HEADER_SIZE + key_hash % shape.slots * SLOT_SIZE
    (number,) = _HEAD.unpack(files.read(path, SLOT_SIZE, slot))
    limit = min(header.index_count, shape.max_items)
    items = HEADER_SIZE + shape.slots * SLOT_SIZE
    # A link leads to an older item or ends the chain, so a damaged chain is finite.
    while 0 < number < limit:
        data = files.read(path, ITEM_SIZE, items + number * ITEM_SIZE)
        item = LocalIndexItem(number, *_ITEM.unpack(data))
        earliest, latest = local_index.time_range_ms(header, item)
        if latest < begin_ms:
            return  # all others are older, as in Java: a hot key has chains of millions
        if item.hash == key_hash and earliest <= end_ms:
            yield item.physical_offset
        number, limit = item.previous, number


def infer_shape(files: PositionalFiles, path: str, configured: IndexShape) -> IndexShape:
    """Return the number of slots and items of an index file. The configured numbers are tried
    first, then numbers computed from the file size. Numbers are accepted if the items of the file
    are in the right slots. Raises Invalid if none fit."""
    size = files.size(path)
    guesses = [configured]
    slots, rest = divmod(size - HEADER_SIZE, SLOT_SIZE + 4 * ITEM_SIZE)
    if rest == 0:
        guesses.append(IndexShape(slots, 4 * slots))  # the proportion of the defaults
    for shape in guesses:
        if shape.size_bytes == size and _fits(files, path, shape):
            return shape
    if size <= _SEARCH_BYTES:
        first = (size - HEADER_SIZE) // SLOT_SIZE % (ITEM_SIZE // SLOT_SIZE) or 5
        for slots in range(first, (size - HEADER_SIZE) // SLOT_SIZE, ITEM_SIZE // SLOT_SIZE):
            shape = IndexShape(slots, (size - HEADER_SIZE - slots * SLOT_SIZE) // ITEM_SIZE)
            if shape.max_items >= 2 and _fits(files, path, shape):
                return shape
    raise Invalid(
        f"{path}: cannot tell how many slots an index file of {size} bytes has: "
        "give maxHashSlotNum and maxIndexNum",
        path=path,
    )


def _fits(files: PositionalFiles, path: str, shape: IndexShape) -> bool:
    header = read_header(files, path)
    count = min(header.index_count - 1, _ITEMS_TRIED)
    if header.index_count > shape.max_items or header.hash_slot_count > shape.slots:
        return False
    if count <= 0:
        return True
    # Newest items: one of them heads each of their slots.
    first = header.index_count - count
    position = HEADER_SIZE + shape.slots * SLOT_SIZE + first * ITEM_SIZE
    items = np.frombuffer(files.read(path, count * ITEM_SIZE, position), dtype=ITEM_DTYPE)
    newest: dict[int, int] = {}
    for number, (key_hash, _, _, previous) in enumerate(items.tolist(), first):
        if key_hash < 0 or not 0 <= previous < number:
            return False
        newest[key_hash % shape.slots] = number
    return all(
        _HEAD.unpack(files.read(path, SLOT_SIZE, HEADER_SIZE + slot * SLOT_SIZE))[0] == number
        for slot, number in newest.items()
    )
