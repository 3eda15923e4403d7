"""Extents: positions of a segment's bytes in objects, in a compact form."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, cast, overload

from tieredstore.providers.chunks.manifests.names import (
    Generation,
    is_carried_name,
    is_grouped_name,
    is_shared_name,
    is_write_name,
    parse_generation,
)

_ROW = struct.Struct("<qqqqq")
_LEAST_ROWS = 4
"""Minimum number of extents for which `ExtentRows` saves memory."""


class Extent(NamedTuple):
    """Bytes [start, end) of the segment, stored in one object after its first `skip` bytes. `name`:
    the object, relative to the segment's folder (see `make_key`). `modified_ms`: creation time by
    the server's clock. `crc`: CRC-32 of these bytes from the index of a group object, or -1 if
    unknown."""

    start: int
    end: int
    name: str
    modified_ms: int = 0
    skip: int = 0
    crc: int = -1

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def is_chunk(self) -> bool:
        """Whether the object contains a single write."""
        return is_write_name(self.name)

    @property
    def is_carried(self) -> bool:
        """Whether the bytes are consume queue units that share an object with their messages."""
        return is_carried_name(self.name)

    @property
    def is_grouped(self) -> bool:
        """Whether the bytes are in a group object, next to bytes of other queues."""
        return is_grouped_name(self.name)

    @property
    def is_shared(self) -> bool:
        """Whether other segments use the same object. It may be deleted only when no segment needs
        it."""
        return is_shared_name(self.name)

    @property
    def generation(self) -> Generation:
        """Generation in which the bytes were written."""
        return parse_generation(self.name)

    def cut(self, start: int, end: int) -> Extent:
        """Return the part of the extent with the bytes [start, end) of the segment."""
        crc = self.crc if (start, end) == (self.start, self.end) else -1
        skip = self.skip + start - self.start
        return self._replace(start=start, end=end, skip=skip, crc=crc)


class ExtentRows(Sequence[Extent]):
    """Compact, immutable sequence of extents. It stores rows of numbers and shared names, in a
    sixth of the memory of separate objects."""

    __slots__ = ("_names", "_rows")

    def __init__(self, rows: bytes, names: tuple[str, ...]) -> None:
        """Create the rows. Each of `names` is given in two parts, split at the last "/"."""
        self._rows = rows
        self._names = names

    def add(self, extent: Extent) -> ExtentRows:
        """Return these extents and one more extent. Raises OverflowError for numbers above 2^63."""
        rows, names = _pack((extent,))
        return ExtentRows(self._rows + rows, self._names + names)

    def iterate_places(self) -> Iterator[tuple[str, int, int]]:
        """Yield generation folder, start and end of each extent. Cheaper than iterating over
        extents."""
        heads = iter(self._names[::2])
        former, folder = "", ""
        for start, end, *_ in _ROW.iter_unpack(self._rows):
            head = next(heads)
            if head is not former:
                former, folder = head, head.partition("/")[0]
            yield folder, start, end

    def are_grouped(self) -> bool:
        """Return whether all extents are in group objects."""
        return all(is_grouped_name(f"/{tail}") for tail in self._names[1::2])

    def __len__(self) -> int:
        return len(self._names) // 2

    def __iter__(self) -> Iterator[Extent]:
        names = iter(self._names)
        for row in _ROW.iter_unpack(self._rows):
            yield _unpack(row, next(names), next(names))

    @overload
    def __getitem__(self, index: int) -> Extent: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Extent, ...]: ...
    def __getitem__(self, index: int | slice) -> Extent | tuple[Extent, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        names = self._names
        row = _ROW.unpack_from(self._rows, place * _ROW.size)
        return _unpack(row, names[2 * place], names[2 * place + 1])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ExtentRows):
            return (self._rows, self._names) == (other._rows, other._names)
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"ExtentRows{tuple(self)!r}"


class ExtentsBuilder:
    """Builder of rows from single extents."""

    __slots__ = ("_names", "_numbers")

    def __init__(self) -> None:
        self._numbers = array("q")
        self._names: list[str] = []

    def append(self, extent: Extent) -> None:
        """Append one extent. Raises OverflowError for numbers above 2^63."""
        start, end, name, modified_ms, skip, crc = extent
        head, _, tail = name.rpartition("/")
        self._numbers.extend((start, end, modified_ms, skip, crc))
        self._names += (sys.intern(head), sys.intern(tail))

    def pack(self) -> tuple[bytes, tuple[str, ...]]:
        """Return the rows and the names of all extents. The builder cannot be used afterwards."""
        if sys.byteorder == "big":
            self._numbers.byteswap()
        return self._numbers.tobytes(), tuple(self._names)

    def build(self) -> ExtentRows:
        """Return all extents. Call this method once, at the end."""
        return ExtentRows(*self.pack())


def keep_extents(extents: Iterable[Extent]) -> Sequence[Extent]:
    """Return extents in a form for storage: rows if there are many, otherwise a tuple. Damaged data
    may have numbers above 2^63, which need a tuple."""
    if isinstance(extents, ExtentRows):
        return extents
    found = tuple(extents)
    if len(found) >= _LEAST_ROWS:
        with suppress(OverflowError):
            return ExtentRows(*_pack(found))
    return found


def add_extent(extents: Sequence[Extent], extent: Extent) -> Sequence[Extent]:
    """Return stored extents and one more extent, in the form for storage."""
    if isinstance(extents, ExtentRows):
        with suppress(OverflowError):
            return extents.add(extent)
    return keep_extents((*extents, extent))


def iterate_places(extents: Sequence[Extent]) -> Iterator[tuple[str, int, int]]:
    """Yield generation folder, start and end of each extent."""
    if isinstance(extents, ExtentRows):
        return extents.iterate_places()
    return ((found.name.partition("/")[0], found.start, found.end) for found in extents)


def are_grouped(extents: Sequence[Extent]) -> bool:
    """Return whether all extents are in group objects."""
    if isinstance(extents, ExtentRows):
        return extents.are_grouped()
    return all(extent.is_grouped for extent in extents)


def _pack(extents: Iterable[Extent]) -> tuple[bytes, tuple[str, ...]]:
    builder = ExtentsBuilder()
    for extent in extents:
        builder.append(extent)
    return builder.pack()


_make = cast("Callable[[tuple[object, ...]], Extent]", partial(tuple.__new__, Extent))
"""Constructor that `Extent(…)` calls."""


def _unpack(row: tuple[int, ...], head: str, tail: str) -> Extent:
    start, end, modified_ms, skip, crc = row
    name = f"{head}/{tail}" if head else tail
    return _make((start, end, name, modified_ms, skip, crc))
