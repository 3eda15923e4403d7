"""Encoder of the properties of a record batch, and of the tags codes of its units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.errors import Invalid
from tieredstore.message.hashes import tags_code
from tieredstore.scan.arrow.buffers import Int64s, content

_PAIR_END_BYTE = 2
_NAME_END, _PAIR_END = pa.scalar(b"\x01", pa.binary()), pa.scalar(b"\x02", pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())
_SINGLE = (("KEYS", "keys"), ("UNIQ_KEY", "msg_id"), ("TAGS", "tags"))
"""Properties that have columns of their own, and the names of these columns. The order is that of
`Message.create`."""


class EncodedProperties(NamedTuple):
    """Encoded properties of records. `encoded`: binary[n] without nulls, contiguous. `tags_codes`:
    tags codes of the units."""

    encoded: pa.Array
    tags_codes: Int64s


def encode_column_properties(batch: pa.RecordBatch) -> EncodedProperties:
    """Encode the column `properties` or, if it is missing, the columns `keys`, `msg_id` and `tags`.
    Empty values are omitted. Raises Invalid for a text that contains a separator of properties."""
    if "properties" in batch.schema.names:
        return _of_maps(batch.column("properties"))
    parts: list[pa.Array] = []
    codes = np.zeros(batch.num_rows, np.int64)
    for name, column in _SINGLE:
        if column not in batch.schema.names:
            continue
        texts = _join_keys(batch.column(column)) if column == "keys" else batch.column(column)
        texts = pc.fill_null(texts.cast(pa.string()), "")
        _check_values(name, texts)
        if column == "tags":
            codes = _codes(texts)
        marked = pc.binary_join_element_wise(
            pa.scalar(name.encode(), pa.binary()),
            _NAME_END,
            texts.cast(pa.binary()),
            _PAIR_END,
            _NOTHING,
        )
        parts.append(pc.if_else(pc.equal(texts, ""), _NOTHING, marked))
    if not parts:
        return EncodedProperties(pa.array([b""] * batch.num_rows, pa.binary()), codes)
    return EncodedProperties(pc.binary_join_element_wise(*parts, _NOTHING), codes)


def _of_maps(maps: pa.Array) -> EncodedProperties:
    offsets = maps.offsets.to_numpy()
    inside = slice(int(offsets[0]), int(offsets[-1]))
    rows = np.repeat(np.arange(len(maps)), np.diff(offsets))
    names = pc.fill_null(maps.keys[inside].cast(pa.string()), "")
    values = pc.fill_null(maps.items[inside].cast(pa.string()), "")
    if maps.null_count:  # entries of a null map do not count
        there = maps.is_valid().to_numpy(zero_copy_only=False)[rows]
        names, values, rows = names.filter(there), values.filter(there), rows[there]
    named = names.dictionary_encode()
    kinds = named.dictionary.to_pylist()
    for name in kinds:
        if not name or "\x01" in name or "\x02" in name:
            raise Invalid(rf"property name {name!r}: expected text without \x01 and \x02")
    _check_values("a property", values)
    is_tags = named.indices.to_numpy() == (kinds.index("TAGS") if "TAGS" in kinds else -1)
    kept = np.diff(content(values)[0]) > 0
    if not kept.all():
        names, values = names.filter(pa.array(kept)), values.filter(pa.array(kept))
        rows, is_tags = rows[kept], is_tags[kept]
    codes = np.zeros(len(maps), np.int64)
    codes[rows[is_tags]] = _codes(values.filter(pa.array(is_tags)))
    joined = pc.binary_join_element_wise(
        names.cast(pa.binary()), _NAME_END, values.cast(pa.binary()), _PAIR_END, _NOTHING
    )
    ends, _ = content(joined)
    counts = np.zeros(len(maps) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(maps)), out=counts[1:])
    encoded = pa.Array.from_buffers(
        pa.binary(),
        len(maps),
        [None, pa.py_buffer(ends[counts].astype(np.int32)), joined.buffers()[2]],
    )
    return EncodedProperties(encoded, codes)


def _check_values(name: str, values: pa.Array) -> None:
    ends, data = content(values)
    if (data[ends[0] : ends[-1]] == _PAIR_END_BYTE).any():
        raise Invalid(rf"value of {name}: expected text without \x02")


def _join_keys(keys: pa.Array) -> pa.Array:
    """Return the KEYS value of each list. Empty keys are omitted. Raises Invalid for a key with a
    space."""
    flat = keys.flatten()
    if pc.any(pc.match_substring(flat, " ")).as_py():
        raise Invalid("keys of a message: expected texts without spaces")
    joined = pc.binary_join(keys.cast(pa.list_(pa.string())), " ")
    if flat.null_count or pc.any(pc.equal(flat, "")).as_py():
        words = [[key for key in row or [] if key] for row in keys.to_pylist()]
        joined = pa.array([" ".join(row) for row in words], pa.string())
    return joined


def _codes(tags: pa.Array) -> Int64s:
    """Return the tags codes of n texts as int64[n]. Equal texts are hashed only once."""
    encoded = tags.dictionary_encode()
    codes = [tags_code(text) for text in encoded.dictionary.to_pylist()]
    found: Int64s = np.array(codes, np.int64)[encoded.indices.to_numpy()]
    return found
