"""Bucket numbers as in Iceberg's transform `bucket[N]`: the 32-bit Murmur3 hash (x86, seed 0)
without its sign, modulo N. Texts are hashed as UTF-8, numbers as 8 bytes."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes: TypeAlias = npt.NDArray[np.uint32]

_C1, _C2, _C3 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593), np.uint32(0xE6546B64)


def bucket_numbers(column: pa.Array, buckets: int, null: int) -> npt.NDArray[np.int64]:
    """Return the bucket number of each value of a text or integer column. A null gets the number
    `null`."""
    found = np.full(len(column), null, np.int64)
    valid = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    values = column.drop_null()
    if pa.types.is_string(column.type):
        hashes = _hash_texts(values)
    else:
        numbers = values.to_numpy().astype("<i8")
        hashes = murmur3(numbers.view(np.uint8).reshape(-1, 8))
    found[valid] = (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % buckets
    return found


def murmur3(rows: npt.NDArray[np.uint8]) -> Hashes:
    """Return the hash of each row of bytes. All rows have the same length."""
    count, length = rows.shape
    hashes = np.zeros(count, np.uint32)
    whole = length // 4 * 4
    blocks = np.ascontiguousarray(rows[:, :whole]).view("<u4")
    for index in range(whole // 4):
        hashes ^= _mix(blocks[:, index].astype(np.uint32))
        hashes = _rotate(hashes, 13) * np.uint32(5) + _C3
    tail = np.zeros(count, np.uint32)
    for index in range(length - 1, whole - 1, -1):
        tail = tail << np.uint32(8) | rows[:, index]
    hashes ^= _mix(tail)
    hashes ^= np.uint32(length)
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes


def _hash_texts(values: pa.Array) -> Hashes:
    """Hash texts of the same length together."""
    encoded = values.cast(pa.binary())
    _, offsets_buffer, data = encoded.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(encoded) + 1, 4 * encoded.offset)
    hashes = np.zeros(len(encoded), np.uint32)
    bytes_ = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    lengths = np.diff(offsets)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        places = offsets[rows].astype(np.int64)[:, None] + np.arange(length)
        hashes[rows] = murmur3(bytes_[places])
    return hashes


def _mix(block: Hashes) -> Hashes:
    return _rotate(block * _C1, 15) * _C2


def _rotate(values: Hashes, bits: int) -> Hashes:
    return values << np.uint32(bits) | values >> np.uint32(32 - bits)
