"""Tags codes of many records, as stored in consume queue units."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.message.buffers import Buffer, view_unaligned
from tieredstore.message.columns.records import RecordColumns
from tieredstore.message.hashes import tags_code
from tieredstore.message.properties import find_text

_PAIR_END, _NAME_END = 2, 1
_NAME: Final = np.frombuffer(b"TAGS", np.uint32)[0]
_WIDTH: Final = 5
_FEW_ROWS = 24
_MOST_LETTERS = 64
"""Maximum length of tags that are hashed together. Longer tags are hashed one at a time."""

Int64s = npt.NDArray[np.int64]


def compute_tags_codes(buffer: Buffer, columns: RecordColumns) -> Int64s:
    """Return int64[n]: `hashes.tags_code` of the TAGS of each record, found like
    `properties.find_text`."""
    lengths = columns.properties_lengths
    if len(columns) < _FEW_ROWS:
        return _one_by_one(buffer, columns.properties_offsets, lengths)
    codes = np.zeros(len(columns), np.int64)
    order = np.argsort(lengths, kind="stable")
    kinds, firsts = np.unique(lengths[order], return_index=True)
    for length, rows in zip(kinds.tolist(), np.split(order, firsts[1:]), strict=True):
        starts = columns.properties_offsets[rows]
        if length > _WIDTH and len(rows) >= _FEW_ROWS:
            codes[rows] = _of_one_length(buffer, starts, length)
        else:
            codes[rows] = _one_by_one(buffer, starts, lengths[rows])
    return codes


def _one_by_one(buffer: Buffer, starts: Int64s, lengths: Int64s) -> Int64s:
    view = memoryview(buffer)
    codes = [
        tags_code(find_text(view[start : start + length], b"TAGS"))
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    return np.array(codes, np.int64)


def _of_one_length(buffer: Buffer, starts: Int64s, length: int) -> Int64s:
    """Return the codes of properties that all have the same length. They are joined into one
    string, with separators before, between and after them."""
    count, width = len(starts), length + 1
    blob = np.empty(count * width + 1 + _WIDTH, np.uint8)
    blob[count * width :] = _PAIR_END
    table = blob[: count * width].reshape(count, width)
    table[:, 0] = _PAIR_END
    table[:, 1:] = (
        view_unaligned(buffer, f"V{length}")[starts].view(np.uint8).reshape(count, length)
    )
    marks = np.flatnonzero(blob[: count * width + 1] == _PAIR_END)
    named = view_unaligned(blob.data, np.uint32)[marks[:-1] + 1] == _NAME
    found = np.flatnonzero(named)
    found = found[blob[marks[found] + _WIDTH] == _NAME_END]
    begins, ends = marks[found] + 1 + _WIDTH, marks[found + 1]
    there = ends > begins
    begins, ends = begins[there], ends[there]
    rows = (begins - 1) // width
    is_last = np.ones(len(rows), np.bool_)  # the last of equal names wins
    is_last[:-1] = rows[1:] != rows[:-1]
    rows, begins, ends = rows[is_last], begins[is_last], ends[is_last]
    codes = np.zeros(count, np.int64)
    codes[rows] = _hashes(blob, begins, ends)
    return codes


def _hashes(blob: npt.NDArray[np.uint8], begins: Int64s, ends: Int64s) -> Int64s:
    """Return String.hashCode of each text blob[begin:end]. Processes one letter of all texts at a
    time."""
    lengths = ends - begins
    hashes = np.zeros(len(begins), np.int32)
    odd = lengths > _MOST_LETTERS
    rows: npt.NDArray[np.intp] | slice = slice(None)
    shortest = int(lengths.min(initial=0))
    for place in range(min(int(lengths.max(initial=0)), _MOST_LETTERS)):
        if place >= shortest:
            rows = np.flatnonzero(lengths > place)
        letters = blob[begins[rows] + place]
        odd[rows] |= letters >= 0x80
        hashes[rows] = hashes[rows] * np.int32(31) + letters
    codes = hashes.astype(np.int64)
    for row in np.flatnonzero(odd).tolist():
        value = blob[begins[row] : ends[row]].tobytes().decode("utf-8", "replace")
        codes[row] = tags_code(value)
    return codes
