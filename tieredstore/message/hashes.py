"""Java's String.hashCode and RocketMQ's hashes based on it (`docs/formats/ids-and-hashes.md`).

The hash of n UTF-16 code units is sum(unit[i] * 31^(n-1-i)) modulo 2^32. The batch form computes
prefix sums of unit[i] * 31^-i over all texts together. (31 is odd, so it has an inverse modulo
2^32.) Each hash is the difference of two prefix sums, times a power of 31.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import mul
from typing import Final

import numpy as np
import numpy.typing as npt

MAX_CACHED_CHARACTERS: Final = 255
"""Maximum length of a string whose hash is kept. A client may send a string of any length."""
SCALAR_LIMIT = 16
"""Number of texts below which a loop over the texts is faster than numpy's columns."""

_UNITS: Final = 1 << 17  # code units hashed together
_MASK: Final = 0xFFFFFFFF
_INT_MIN: Final = -(2**31)


def _powers(base: int, count: int) -> npt.NDArray[np.uint32]:
    powers = np.full(count, base, dtype=np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


_POWERS: Final = _powers(31, _UNITS)
_INVERSE_POWERS: Final = _powers(pow(31, -1, 1 << 32), _UNITS)
_REVERSED: Final[tuple[int, ...]] = tuple(int(p) for p in _POWERS[255::-1])  # 31^255 ... 31^0


def _to_signed(value: int) -> int:
    value &= _MASK
    return value - 0x1_0000_0000 if value >= 0x8000_0000 else value


def java_string_hash(text: str, before: int = 0) -> int:
    """Return Java's String.hashCode of a text: an i32. `before`: hash (modulo 2^32) of a text that
    precedes it."""
    if text.isascii():
        units: Sequence[int] = text.encode("ascii")
    else:
        units = memoryview(_utf16(text)).cast("H")
    first = 255 - len(units)
    if first >= 0:
        products = map(mul, units, _REVERSED[first + 1 :])
        return _to_signed(sum(products, before * _REVERSED[first]))
    value = before
    for unit in units:
        value = (31 * value + unit) & _MASK
    return _to_signed(value)


def _utf16(text: str) -> bytes:
    # memoryview.cast("H") and numpy's uint16 are native, so the units must be native too.
    return text.encode(_NATIVE_UTF16, "surrogatepass")


_NATIVE_UTF16: Final = "utf-16-le" if np.little_endian else "utf-16-be"


def _utf16_length(text: str) -> int:
    return len(_utf16(text)) // 2


def java_string_hashes(texts: Sequence[str]) -> npt.NDArray[np.int32]:
    """Return String.hashCode of each text: int32[n]."""
    if len(texts) < SCALAR_LIMIT:
        return np.array([java_string_hash(text) for text in texts], dtype=np.int32)
    hashes, _ = _hash_many(texts)
    return hashes.view(np.int32)


def _hash_many(texts: Sequence[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the hashes (modulo 2^32) of texts, and their lengths in code units."""
    joined = "".join(texts)
    if joined.isascii():
        units: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
        units = np.frombuffer(joined.encode("ascii"), dtype=np.uint8)
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    else:
        units = np.frombuffer(_utf16(joined), dtype=np.uint16)
        count = len if len(units) == len(joined) else _utf16_length
        lengths = np.fromiter(map(count, texts), dtype=np.int64, count=len(texts))
    ends = np.cumsum(lengths)
    hashes = np.zeros(len(texts), dtype=np.uint32)
    first, start = 0, 0
    while first < len(texts):
        last = int(np.searchsorted(ends, start + _UNITS, side="right"))
        if last == first:  # one text is longer than the tables
            hashes[first] = java_string_hash(texts[first]) & _MASK
            last = first + 1
        else:
            block = units[start : int(ends[last - 1])]
            hashes[first:last] = _hash_block(block, ends[first:last] - start)
        first, start = last, int(ends[last - 1])
    return hashes, lengths


def _hash_block(
    units: npt.NDArray[np.uint8] | npt.NDArray[np.uint16], ends: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    sums = np.zeros(len(units) + 1, dtype=np.uint32)
    np.cumsum(units * _INVERSE_POWERS[: len(units)], dtype=np.uint32, out=sums[1:])
    at_ends = sums[ends]
    hashes = at_ends.copy()
    hashes[1:] -= at_ends[:-1]
    # An empty text has equal sums, so its hash is 0 with any power.
    hashes *= _POWERS[np.maximum(ends - 1, 0)]
    return hashes


def topic_prefix_hash(topic: str) -> int:
    """Return the hash of `topic#`, modulo 2^32."""
    is_short = len(topic) <= MAX_CACHED_CHARACTERS
    return _short_prefix_hash(topic) if is_short else java_string_hash(topic + "#") & _MASK


@functools.lru_cache(maxsize=8192)
def _short_prefix_hash(topic: str) -> int:
    return java_string_hash(topic + "#") & _MASK


def _hash_topic_keys(topic: str, keys: Sequence[str]) -> npt.NDArray[np.int32]:
    if len(keys) < SCALAR_LIMIT:
        before = topic_prefix_hash(topic)
        return np.array([java_string_hash(key, before) for key in keys], dtype=np.int32)
    hashes, lengths = _hash_many(keys)
    too_long = lengths >= _UNITS
    shifts = _POWERS[np.where(too_long, 0, lengths)]
    hashes += np.uint32(topic_prefix_hash(topic)) * shifts
    for index in np.flatnonzero(too_long).tolist():
        hashes[index] = java_string_hash(keys[index], topic_prefix_hash(topic)) & _MASK
    return hashes.view(np.int32)


def index_hash(java_hash: int) -> int:
    """Return the absolute value of a hash, or 0 for -2^31, as stored in an index file (local or
    tiered)."""
    return 0 if java_hash == _INT_MIN else abs(java_hash)


def index_hashes(java_hashes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return `index_hash` of each hash: int32[n]."""
    hashes = np.abs(java_hashes)
    hashes[hashes < 0] = 0
    return hashes


def local_key_hash(topic: str, key: str) -> int:
    """Return the hash that a local index stores for a key of a topic: 0 to 2^31 - 1."""
    return index_hash(java_string_hash(key, topic_prefix_hash(topic)))


def tiered_key_hash(topic: str, key: str) -> int:
    """Return the hash that a tiered index stores for a key of a topic: 0 to 2^31 - 1. For the hash
    -2^31 this is 0, as in the local index and later versions of Java. Java 5.5.0 computes a
    negative slot from it, fails, and does not index the key."""
    return local_key_hash(topic, key)


def tiered_key_hashes(topic: str, keys: Sequence[str]) -> npt.NDArray[np.int32]:
    """Return `tiered_key_hash` of each key: int32[n]."""
    return index_hashes(_hash_topic_keys(topic, keys))


def tiered_key_hash_candidates(topic: str, key: str) -> tuple[int, ...]:
    """Return the hashes that a tiered index may store for a key, this project's hash first.
    Versions after 5.5.0 may store `hash & 0x7fffffff`, which differs for a negative hash."""
    java_hash = java_string_hash(key, topic_prefix_hash(topic))
    ours, later = index_hash(java_hash), java_hash & 0x7FFFFFFF
    return (ours,) if ours == later else (ours, later)


def tags_code(tags: str | None) -> int:
    """Return the tags code of a consume queue unit: the hash of the whole TAGS value, or 0 without
    tags."""
    if not tags:
        return 0
    return _short_tags_code(tags) if len(tags) <= MAX_CACHED_CHARACTERS else java_string_hash(tags)


@functools.lru_cache(maxsize=8192)
def _short_tags_code(tags: str) -> int:
    return java_string_hash(tags)
