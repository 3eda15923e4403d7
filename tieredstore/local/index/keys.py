"""Computes tags codes and index entries from the properties of many messages.

An index entry is a hash of `topic#key`. A message has an entry for its UNIQ_KEY, one for each of
its KEYS and, as in 5.5.0, one for `topic#T#tags`, in this order (`docs/formats/local-index.md`).
Text is handled as bytes. ASCII properties are processed as columns, other properties one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.message.buffers import view_unaligned
from tieredstore.message.core import IS_COMPILED
from tieredstore.message.hashes import index_hashes, java_string_hash, local_key_hash, tags_code
from tieredstore.message.properties import MAX_PROPERTIES_BYTES, find_text

if IS_COMPILED:
    from tieredstore.message import _core

SCALAR_LIMIT: Final = 32
"""Number of messages below which a loop over single messages is faster than work on arrays."""

_BLOCK_BYTES: Final = 1 << 19
_MASK: Final = 0xFFFFFFFF
_END: Final = 2
_SPACE: Final = 32
_PADDING: Final = b"\x02" * 16
_KEYS: Final = int.from_bytes(b"KEYS", "big")
_TAGS: Final = int.from_bytes(b"TAGS", "big")
_UNIQ: Final = int.from_bytes(b"UNIQ_KEY", "big")

Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]


def _powers() -> UInt32s:
    powers = np.full(MAX_PROPERTIES_BYTES + 1, 31, dtype=np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


_POWERS: Final = _powers()
"""Powers of 31 (31^0, 31^1, …) modulo 2^32."""


class IndexEntries(NamedTuple):
    """Tags codes and index entries of messages. `tags_codes`: int64[n], one per message. `rows`:
    int64[k], message number of each index entry, ascending. `hashes`: int32[k], hash of each index
    entry, 0 to 2^31 - 1."""

    tags_codes: Int64s
    rows: Int64s
    hashes: npt.NDArray[np.int32]


def index_keys_of(properties: bytes) -> list[str]:
    """Return the texts after `topic#` in the index entries of one message."""
    found: list[str] = []
    uniq_key = find_text(properties, b"UNIQ_KEY")
    if uniq_key:
        found.append(uniq_key)
    keys = find_text(properties, b"KEYS")
    if keys:
        found += [key for key in keys.split(" ") if key]
    tags = find_text(properties, b"TAGS")
    if tags:
        found.append(f"T#{tags}")
    return found


class TopicPrefixes:
    """Hashes of the prefixes of each topic's index entries. `hashes`: uint32[topics, 2] with spare
    rows. Row i has the hashes of `topic#` and `topic#T#` for topic number i."""

    __slots__ = ("hashes", "topics")

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.hashes = np.empty((64, 2), dtype=np.uint32)

    def put(self, number: int, topic: str) -> None:
        """Assign a number to a topic. The previous topic with this number loses it."""
        while number >= len(self.hashes):
            self.hashes = np.concatenate([self.hashes, np.empty_like(self.hashes)])
        self.hashes[number] = (
            java_string_hash(f"{topic}#") & _MASK,
            java_string_hash(f"{topic}#T#") & _MASK,
        )
        self.topics += [""] * (number + 1 - len(self.topics))
        self.topics[number] = topic

    def get_hashes(self, numbers: Int64s) -> UInt32s:
        """Return the hashes of `topic#` and `topic#T#` for topic numbers: uint32[n, 2]."""
        return self.hashes[numbers]


def index_entries(
    prefixes: TopicPrefixes, numbers: Int64s, properties: Sequence[bytes]
) -> IndexEntries:
    """Return tags codes and index entries of messages. `numbers`: topic number of each message."""
    if IS_COMPILED:
        compiled = _core.index_entries(
            list(properties), np.ascontiguousarray(numbers, dtype=np.int64), prefixes.hashes
        )
        if compiled is not None:
            codes, rows, hashes = compiled
            return IndexEntries(
                np.frombuffer(codes, dtype=np.int64),
                np.frombuffer(rows, dtype=np.int64),
                np.frombuffer(hashes, dtype=np.int32),
            )
    count = len(properties)
    if count < SCALAR_LIMIT:
        return _collect_singly(prefixes, numbers, properties)
    lengths = np.fromiter(map(len, properties), dtype=np.int64, count=count)
    ends = np.cumsum(lengths + 1)
    blocks: list[IndexEntries] = []
    start = 0
    while start < count:
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, before + _BLOCK_BYTES)) + 1
        entries = _block(
            prefixes, numbers[start:end], properties[start:end], ends[start:end] - (before + 1)
        )
        blocks.append(entries._replace(rows=entries.rows + start))
        start = end
    if len(blocks) == 1:
        return blocks[0]
    return IndexEntries(
        np.concatenate([block.tags_codes for block in blocks]),
        np.concatenate([block.rows for block in blocks]),
        np.concatenate([block.hashes for block in blocks]),
    )


def _collect_singly(
    prefixes: TopicPrefixes, numbers: Int64s, properties: Sequence[bytes]
) -> IndexEntries:
    codes: list[int] = []
    rows: list[int] = []
    hashes: list[int] = []
    for row, (number, data) in enumerate(zip(numbers.tolist(), properties, strict=True)):
        topic = prefixes.topics[number]
        codes.append(tags_code(find_text(data, b"TAGS")))
        for key in index_keys_of(data):
            rows.append(row)
            hashes.append(local_key_hash(topic, key))
    return IndexEntries(
        np.array(codes, dtype=np.int64),
        np.array(rows, dtype=np.int64),
        np.array(hashes, dtype=np.int32),
    )


class _Values(NamedTuple):
    """Positions of property values in a block with the properties of many messages. `rows`: message
    number of each value, ascending. `starts`, `ends`: bytes of each value in the block."""

    rows: Int64s
    starts: Int64s
    ends: Int64s


def _block(
    prefixes: TopicPrefixes, numbers: Int64s, properties: Sequence[bytes], row_ends: Int64s
) -> IndexEntries:
    """Return tags codes and index entries of messages. The properties of all messages are joined
    into one block with separator bytes. `row_ends`: end of each message's properties in the
    block."""
    joined = b"\x02".join(properties) + _PADDING
    if not joined.isascii():
        return _collect_singly(prefixes, numbers, properties)
    data = np.frombuffer(joined, dtype=np.uint8)
    pair_ends = np.flatnonzero(data[: int(row_ends[-1]) + 1] == _END)
    pair_starts = np.empty_like(pair_ends)
    pair_starts[0] = 0
    np.add(pair_ends[:-1], 1, out=pair_starts[1:])
    names = view_unaligned(joined, ">u8")[pair_starts]
    # A name of four letters and the byte after it are the upper five bytes of eight.
    short_names = names >> 24
    uniq = np.flatnonzero((names == _UNIQ) & (data[pair_starts + 8] == 1))
    uniq_values = _values(pair_starts, pair_ends, uniq, 9, row_ends)
    keys = np.flatnonzero(short_names == (_KEYS << 8 | 1))
    key_values = _split_words(_values(pair_starts, pair_ends, keys, 5, row_ends), data)
    tags = np.flatnonzero(short_names == (_TAGS << 8 | 1))
    tag_values = _values(pair_starts, pair_ends, tags, 5, row_ends)

    before = prefixes.get_hashes(numbers)
    tag_hashes = _hash(data, tag_values)
    codes = np.zeros(len(properties), dtype=np.int64)
    codes[tag_values.rows] = tag_hashes.view(np.int32)
    rows = np.concatenate([uniq_values.rows, key_values.rows, tag_values.rows])
    hashes = np.concatenate(
        [
            _hash(data, uniq_values) + _shift_hashes(before[:, 0], uniq_values),
            _hash(data, key_values) + _shift_hashes(before[:, 0], key_values),
            tag_hashes + _shift_hashes(before[:, 1], tag_values),
        ]
    )
    order = np.argsort(rows, kind="stable")
    return IndexEntries(codes, rows[order], index_hashes(hashes[order].view(np.int32)))


def _values(
    pair_starts: Int64s, pair_ends: Int64s, chosen: Int64s, name_bytes: int, row_ends: Int64s
) -> _Values:
    """Return the values of the chosen name-value pairs. If a message has several, its last
    non-empty value is used."""
    starts, ends = pair_starts[chosen] + name_bytes, pair_ends[chosen]
    used = starts < ends
    if not used.all():
        starts, ends = starts[used], ends[used]
    rows = np.searchsorted(row_ends, ends)
    if len(rows) > 1:
        is_last = np.append(rows[1:] != rows[:-1], True)
        if not is_last.all():
            return _Values(rows[is_last], starts[is_last], ends[is_last])
    return _Values(rows, starts, ends)


def _split_words(values: _Values, data: npt.NDArray[np.uint8]) -> _Values:
    spaces = np.flatnonzero(data == _SPACE)
    if not len(spaces) or not len(values.rows):
        return values
    owner = np.searchsorted(values.starts, spaces, side="right") - 1
    inside = (owner >= 0) & (spaces < values.ends[owner])
    if not inside.any():
        return values
    spaces, owner = spaces[inside], owner[inside]
    starts = np.sort(np.concatenate([values.starts, spaces + 1]))
    ends = np.sort(np.concatenate([values.ends, spaces]))
    rows = np.sort(np.concatenate([values.rows, values.rows[owner]]))
    used = starts < ends
    return _Values(rows[used], starts[used], ends[used])


def _hash(data: npt.NDArray[np.uint8], values: _Values) -> UInt32s:
    """Return Java's String.hashCode of each value, modulo 2^32."""
    lengths = values.ends - values.starts
    hashes = np.empty(len(lengths), dtype=np.uint32)
    kinds = np.flatnonzero(np.bincount(lengths))
    for length in kinds.tolist():
        chosen = slice(None) if len(kinds) == 1 else np.flatnonzero(lengths == length)
        texts: npt.NDArray[Any] = np.ndarray(
            (len(data) - length + 1,), f"V{length}", buffer=data, strides=(1,)
        )[values.starts[chosen]]
        units = texts.view(np.uint8).reshape(-1, length)
        hashes[chosen] = units @ _POWERS[length - 1 :: -1] if length > 1 else units[:, 0]
    return hashes


def _shift_hashes(prefix_hashes: UInt32s, values: _Values) -> UInt32s:
    shifted: UInt32s = prefix_hashes[values.rows] * _POWERS[values.ends - values.starts]
    return shifted
