"""Conversion of message properties to Arrow columns, by the rules of `message.properties`."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.message.buffers import Buffer, view_unaligned
from tieredstore.message.columns.records import RecordColumns
from tieredstore.message.properties import is_blank
from tieredstore.scan.arrow.buffers import Bools, Int64s, content, gather_values, text

_NAME_END, _PAIR_END, _SPACE = 1, 2, 0x20
_NUMBERS = {4: "u4", 8: "u8"}
"""For the length of a property name in bytes, the type of number as which names of this length are
compared. This is several times faster than comparing texts."""
_PADDING = 8
"""Number of zero bytes after the last property, so that 8 bytes can be read as a number from the
start of each property."""


class PropertyColumns:
    """Properties of n records. They are concatenated, and then split at their separators."""

    def __init__(self, buffer: Buffer, columns: RecordColumns) -> None:
        self._count = len(columns)
        # Each piece begins one byte early. That byte then ends the piece before it.
        pieces = gather_values(
            buffer, columns.properties_offsets - 1, columns.properties_lengths + 1
        )
        ends, data = content(pieces)
        size = int(ends[-1])
        blob = np.empty(size + _PADDING, np.uint8)
        blob[:size] = data[:size]
        blob[size:] = 0
        blob[ends[:-1]] = _PAIR_END
        self._blob = blob
        self._is_ascii = bool((blob < 0x80).all())
        marks = np.flatnonzero(blob == _PAIR_END)
        self._firsts, self._marks = ends[:-1], marks
        self._begins = marks + 1
        self._ends = np.append(marks[1:], size)

    @cached_property
    def _rows(self) -> Int64s:
        """Return the record number of each of the m properties, as int64[m]."""
        is_first = np.zeros(len(self._marks), np.bool_)
        is_first[np.searchsorted(self._marks, self._firsts)] = True
        return np.cumsum(is_first) - 1

    @cached_property
    def _alike(self) -> npt.NDArray[np.uint32] | None:
        """Return the first four bytes of each property as uint32[n, k], if all n records have the
        same number k of properties. Otherwise return None."""
        per_record, rest = divmod(len(self._marks), max(self._count, 1))
        if rest or not per_record or (self._marks[::per_record] != self._firsts).any():
            return None
        starts = view_unaligned(self._blob.data, "u4")
        return starts[self._begins].reshape(-1, per_record)

    def _find_alike(self, name: bytes) -> tuple[Int64s, Int64s] | None:
        """Return the start and end positions of the values of one property. Return None unless each
        record has the property exactly once, with a value, and at the same place in order."""
        if self._alike is None:
            return None
        may_be = self._alike == np.frombuffer(name[:4], "u4")[0]
        first = np.flatnonzero(may_be[0])
        if len(first) != 1 or np.count_nonzero(may_be) != self._count:
            return None
        place = slice(int(first[0]), None, may_be.shape[1])
        begins, ends = self._begins[place], self._ends[place]
        kind, value_begins = _NUMBERS[len(name)], begins + len(name) + 1
        names = view_unaligned(self._blob.data, kind)
        is_named = (
            (value_begins < ends).all()
            and (names[begins] == np.frombuffer(name, kind)[0]).all()
            and (self._blob[value_begins - 1] == _NAME_END).all()
        )
        return (value_begins, ends) if is_named else None

    def values(self, name: bytes) -> pa.Array:
        """Return the values of one property as a string array, null for a record without it.
        `name`: must have 4 or 8 bytes."""
        width = len(name) + 1
        alike = self._find_alike(name)
        if alike is not None:
            begins, ends = alike
            return self._text(begins, ends - begins)
        kind = _NUMBERS[len(name)]
        found = np.flatnonzero(self._ends - self._begins > width)
        begins = self._begins[found]
        named = view_unaligned(self._blob.data, kind)[begins] == np.frombuffer(name, kind)[0]
        found = found[named]
        found = found[self._blob[self._begins[found] + len(name)] == _NAME_END]
        rows = self._rows[found]
        is_last = np.ones(len(rows), np.bool_)  # of equal names the last wins
        is_last[:-1] = rows[1:] != rows[:-1]
        found = found[is_last]
        there = np.zeros(self._count, np.bool_)
        there[self._rows[found]] = True
        begins = self._begins[found] + width
        return self._text(begins, self._ends[found] - begins, None if there.all() else there)

    def _text(self, starts: Int64s, lengths: Int64s, there: Bools | None = None) -> pa.Array:
        pieces = gather_values(self._blob.data, starts, lengths, there)
        return text(pieces, is_ascii=self._is_ascii)

    def keys(self) -> pa.Array:
        """Return the keys of each record as an array of lists. KEYS is split at each space. The
        list is empty for a record without keys."""
        values = self.values(b"KEYS")
        owners = np.arange(self._count)
        if values.null_count:
            owners = owners[values.is_valid().to_numpy(zero_copy_only=False)]
            values = values.drop_null()
        blank = _blank(values)
        if blank.any():
            owners, values = owners[~blank], values.filter(pa.array(~blank))
        ends, data = content(values)
        if (data[ends[0] : ends[-1]] == _SPACE).any():
            parts = pc.split_pattern(values, " ")
            owners = np.repeat(owners, np.diff(parts.offsets.to_numpy()))
            values = parts.flatten()
            kept = np.diff(content(values)[0]) > 0
            owners, values = owners[kept], values.filter(pa.array(kept))
        offsets = np.zeros(self._count + 1, np.int32)
        np.cumsum(np.bincount(owners, minlength=self._count), out=offsets[1:])
        return pa.ListArray.from_arrays(pa.array(offsets), values)

    def maps(self) -> pa.Array:
        """Return the properties of each record as an array of maps, in the order of the record. A
        duplicate name appears once, with its last value."""
        pairs, marks = self._pairs()
        begins, ends = self._begins[pairs], self._ends[pairs]
        names = self._text(begins, marks - begins)
        rows, values, value_ends = self._rows[pairs], marks + 1, ends
        kept, winners = _distinct(rows, names)
        if len(kept) < len(rows):
            rows, names = rows[kept], names.take(pa.array(kept))
            values, value_ends = values[winners], value_ends[winners]
        items = self._text(values, value_ends - values)
        offsets = np.zeros(self._count + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=self._count), out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), names, items)

    def _pairs(self) -> tuple[Int64s, Int64s]:
        """Return the numbers of the properties that have a name and a value, and the positions of
        their separators."""
        pairs = np.flatnonzero(self._ends > self._begins)
        begins, ends = self._begins[pairs], self._ends[pairs]
        marks = np.flatnonzero(self._blob == _NAME_END)
        if len(marks) != len(pairs) or not ((marks > begins) & (marks + 1 < ends)).all():
            at = np.searchsorted(marks, begins)
            marks = np.append(marks, len(self._blob))[at]
            good = (marks > begins) & (marks + 1 < ends)
            pairs, marks = pairs[good], marks[good]
        return pairs, marks


def _blank(values: pa.Array) -> Bools:
    """Return a mask (bool[n]) of texts that are empty or only white space by Java's rules."""
    ends, data = content(values)
    first = data[ends[:-1]]
    blank: Bools = (first <= _SPACE) | (first >= 0x80)
    for row in np.flatnonzero(blank).tolist():
        blank[row] = is_blank(values[row].as_py())
    return blank


def _distinct(rows: Int64s, names: pa.Array) -> tuple[Int64s, Int64s]:
    """Find duplicate names of properties in a record. For each name, return the index of its first
    occurrence, and of its last one, whose value is valid."""
    codes = names.dictionary_encode().indices.to_numpy().astype(np.int64)
    place = rows * (int(codes.max(initial=0)) + 1) + codes
    kept = np.sort(np.unique(place, return_index=True)[1])
    if len(kept) == len(place):
        return kept, kept
    last = len(place) - 1 - np.unique(place[::-1], return_index=True)[1]
    by_place = {int(place[i]): i for i in last.tolist()}
    return kept, np.array([by_place[int(place[i])] for i in kept.tolist()], np.int64)
