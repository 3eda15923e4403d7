"""Index keys of many messages, equal to those of the scalar `columns.index_keys`.

A batch is ordinary if all properties are ASCII and no value begins with white space. Keys of an
ordinary batch are found by comparing columns. Other batches use the scalar function.
"""

from __future__ import annotations

import operator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tieredstore.message.buffers import Buffer, view_unaligned
from tieredstore.message.columns.records import RecordColumns, index_keys, record_columns
from tieredstore.message.columns.walk import Positions
from tieredstore.message.core import IS_COMPILED
from tieredstore.message.hashes import tiered_key_hashes, topic_prefix_hash
from tieredstore.message.properties import split_keys

if IS_COMPILED:
    from tieredstore.message import _core

Int64s: TypeAlias = npt.NDArray[np.int64]
Int32s: TypeAlias = npt.NDArray[np.int32]


class _Values(NamedTuple):
    """Values of one property of several records. `rows`: record of each value, ascending. `texts`:
    the values."""

    rows: Int64s
    texts: list[str]


SCALAR_LIMIT = 64
"""Number of messages below which a loop over single messages is faster."""

_SEPARATOR = b"\x02"
_KEYS = int.from_bytes(b"KEYS", "big")
_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "big")


def key_hashes(
    buffer: Buffer, positions: Positions, topic: str, columns: RecordColumns | None = None
) -> tuple[Int64s, Int32s]:
    """Return the tier's index entries for a topic's records: (row of the record int64[k],
    `tiered_key_hash` int32[k]). `columns`: decoded columns of these records, if available. Raises
    Corrupt, naming the first bad record."""
    if IS_COMPILED:
        compiled = _core.key_hashes(
            buffer, np.ascontiguousarray(positions, dtype=np.int64), topic_prefix_hash(topic)
        )
        if compiled is not None:
            rows, hashes = compiled
            return np.frombuffer(rows, np.int64), np.frombuffer(hashes, np.int32)
    if columns is None:
        columns = record_columns(buffer, positions)
    found, keys = keys_of_batch(buffer, columns)
    return found, tiered_key_hashes(topic, keys)


def keys_of_batch(buffer: Buffer, columns: RecordColumns) -> tuple[Int64s, list[str]]:
    """Return the same as `columns.index_keys`: (row of the record int64[k], key[k])."""
    if len(columns) < SCALAR_LIMIT:
        return index_keys(buffer, columns)
    view = memoryview(buffer)
    starts, lengths = columns.properties_offsets, columns.properties_lengths
    blob = _SEPARATOR.join(
        [
            b"",
            *(
                view[start:end]
                for start, end in zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
            ),
            b"",
        ]
    )
    if not blob.isascii():
        return index_keys(buffer, columns)
    found = np.frombuffer(blob, np.uint8)
    marks = np.flatnonzero(found == _SEPARATOR[0])
    begins, ends = marks[:-1] + 1, marks[1:]
    behind_rows = np.cumsum(lengths + 1)
    uniq = _values(blob, begins, ends, _UNIQ_KEY, ">u8")
    keys = _values(blob, begins, ends, _KEYS, ">u4")
    if (found[uniq[0]] <= 0x20).any() or (found[keys[0]] <= 0x20).any():
        return index_keys(buffer, columns)
    text = blob.decode("ascii")
    uniq_keys = _take_last_of_each_row(text, *uniq, behind_rows)
    key_values = _take_last_of_each_row(text, *keys, behind_rows)
    if not _are_all_single(found, keys) or _may_share_values(uniq_keys, key_values):
        key_values = _split_keys_values(key_values, uniq_keys)
    return _merge_by_row(uniq_keys, key_values)


def _values(
    blob: bytes, begins: Int64s, ends: Int64s, name: int, dtype: str
) -> tuple[Int64s, Int64s]:
    """Return begin and end of the values of the property `name`. Empty values are omitted."""
    size = np.dtype(dtype).itemsize
    long_enough = ends - begins > size + 1
    begins, ends = begins[long_enough], ends[long_enough]
    named = view_unaligned(blob, dtype)[begins] == name
    named &= np.frombuffer(blob, np.uint8)[begins + size] == 1
    return begins[named] + size + 1, ends[named]


def _take_last_of_each_row(text: str, begins: Int64s, ends: Int64s, behind_rows: Int64s) -> _Values:
    rows = np.searchsorted(behind_rows, begins, side="right")
    last = np.ones(len(rows), np.bool_)
    last[:-1] = rows[1:] != rows[:-1]
    spans = zip(begins[last].tolist(), ends[last].tolist(), strict=True)
    return _Values(rows[last], [text[begin:end] for begin, end in spans])


def _are_all_single(found: npt.NDArray[np.uint8], keys: tuple[Int64s, Int64s]) -> bool:
    spaces = np.flatnonzero(found == 0x20)
    begins, ends = keys
    return bool((np.searchsorted(spaces, begins) == np.searchsorted(spaces, ends)).all())


def _may_share_values(uniq_keys: _Values, key_values: _Values) -> bool:
    """Return whether a KEYS value may equal the UNIQ_KEY of its row."""
    if not uniq_keys.texts or not key_values.texts:
        return False
    if np.array_equal(uniq_keys.rows, key_values.rows):
        return any(map(operator.eq, uniq_keys.texts, key_values.texts))
    return not set(uniq_keys.texts).isdisjoint(key_values.texts)


def _split_keys_values(key_values: _Values, uniq_keys: _Values) -> _Values:
    """Split KEYS values into keys. Keys that are repeated in a row, or equal its UNIQ_KEY, are
    omitted."""
    uniq_of = dict(zip(uniq_keys.rows.tolist(), uniq_keys.texts, strict=True))
    rows: list[int] = []
    texts: list[str] = []
    for row, text in zip(key_values.rows.tolist(), key_values.texts, strict=True):
        for key in dict.fromkeys(split_keys(text)):
            if uniq_of.get(row) != key:
                rows.append(row)
                texts.append(key)
    return _Values(np.array(rows, np.int64), texts)


def _merge_by_row(uniq_keys: _Values, key_values: _Values) -> tuple[Int64s, list[str]]:
    """Sort by row, with UNIQ_KEY first in each row."""
    places = np.concatenate((uniq_keys.rows * 2, key_values.rows * 2 + 1))
    order = np.argsort(places, kind="stable")
    texts = uniq_keys.texts + key_values.texts
    return places[order] // 2, list(map(texts.__getitem__, order.tolist()))
