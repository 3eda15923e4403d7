"""Arrow arrays from parts of a buffer, built without a loop."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tieredstore.message.buffers import Buffer

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FILTER_BYTES = 512
"""Mean length of values above which Arrow's `filter` copies faster than its `take` (measured)."""


def gather_values(
    buffer: Buffer, starts: Int64s, lengths: Int64s, there: Bools | None = None
) -> pa.Array:
    """Return a binary array with buffer[start : start + length] for each row. `starts` is
    ascending. With `there`, starts and lengths are given only for the rows where it is true, and
    all other rows are null."""
    count = len(starts)
    ends = starts + lengths
    if count and (ends[:-1] > starts[1:]).any():  # pieces that overlap: damaged lengths
        view = memoryview(buffer)
        pieces = pa.array(
            [bytes(view[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)],
            type=pa.binary(),
        )
        return pieces if there is None else pieces.take(_places(there, 1))
    # An array over the whole buffer, without a copy: wanted pieces and gaps alternate.
    offsets = np.empty(2 * count + 1, dtype=np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = ends
    offsets[-1] = ends[-1] if count else 0
    alternating = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
    )
    if there is not None:
        return alternating.take(_places(there, 2))
    if count and int(lengths.sum()) >= count * _FILTER_BYTES:
        wanted = np.zeros(2 * count, dtype=np.bool_)
        wanted[::2] = True
        return alternating.filter(pa.array(wanted))
    return alternating.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _places(there: Bools, step: int) -> pa.Array:
    """Number the rows where `there` is true as 0, `step`, 2 * `step`, …. Other rows are null."""
    places = (np.cumsum(there) - 1) * step
    return pa.array(places, mask=~there)


def content(pieces: pa.Array) -> tuple[Int64s, npt.NDArray[np.uint8]]:
    """Return the offsets int64[n + 1] and the bytes of a binary or string array without nulls."""
    _, offsets, data = pieces.buffers()
    ends = np.frombuffer(offsets, np.int32, len(pieces) + 1, pieces.offset * 4).astype(np.int64)
    if data is None:
        return ends, np.empty(0, np.uint8)
    return ends, np.frombuffer(data, np.uint8)


def text(pieces: pa.Array, *, is_ascii: bool = False) -> pa.Array:
    """Convert a binary array to a string array. Bytes that are not UTF-8 become U+FFFD."""
    if is_ascii:
        return pieces.view(pa.string())
    try:
        return pieces.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if v is None else v.decode("utf-8", "replace") for v in pieces.to_pylist()],
            type=pa.string(),
        )


def make_fixed_text(letters: npt.NDArray[np.uint8]) -> pa.Array:
    """Convert ASCII texts of equal length, uint8[n, width], to an Arrow string array of n rows."""
    count, width = letters.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    data = np.ascontiguousarray(letters)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def make_constant_text(value: str, count: int) -> pa.Array:
    """Return a string array with the same text in `count` rows. Bytes of a file name that are not
    valid Unicode become U+FFFD."""
    return _repeat_text(_show(value), 1 << max(count - 1, 0).bit_length()).slice(0, count)


def make_repeated_text(values: Sequence[tuple[str, int]]) -> pa.Array:
    """Return a string array of repeated texts. `values`: texts and their numbers of repetitions."""
    texts = dict.fromkeys(value for value, _ in values)
    counts = [count for _, count in values]
    if len(texts) == 1:
        return make_constant_text(values[0][0], sum(counts))
    places = {value: place for place, value in enumerate(texts)}
    rows = np.repeat(np.array([places[value] for value, _ in values], np.int32), counts)
    return pa.array(map(_show, texts), pa.string()).take(pa.array(rows))


def _show(value: str) -> str:
    return value.encode(errors="surrogateescape").decode("utf-8", "replace")


@functools.lru_cache(maxsize=64)
def _repeat_text(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def interleave_rows(parts: Sequence[tuple[Bools | None, pa.Array]]) -> pa.Array:
    """Merge several arrays into one. `parts`: for each array, a mask of the rows that it fills
    (None: all rows), and the array."""
    if len(parts) == 1:
        return parts[0][1]
    order = np.concatenate([np.flatnonzero(mask) for mask, _ in parts if mask is not None])
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.arange(len(order))
    return pa.concat_arrays([array for _, array in parts]).take(pa.array(places))
