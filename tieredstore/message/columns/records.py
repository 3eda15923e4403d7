"""Commit log records of one buffer as columns (`docs/formats/record.md`).

Positions and lengths are bytes. Arrays have one row per record. Each function drops its views
before it returns, so that a mapped file can be closed afterwards.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Invalid
from tieredstore.message import layout, sysflag
from tieredstore.message.buffers import Buffer, find_greatest, find_least, view_unaligned
from tieredstore.message.columns.walk import SCALAR_LIMIT, Positions
from tieredstore.message.crc import CRC_BLOCK_SIZE, CRC_MASK, property_crc_matches, raw_crc32
from tieredstore.message.layout import (
    FIXED_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    make_corrupt_error,
)
from tieredstore.message.properties import find_text, is_blank, split_keys

HEADER_DTYPE: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">u4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", "V8"),
        ("store_timestamp", ">i8"),
        ("store_host", "V8"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_length", ">i4"),
    ]
)
"""Header of a record: the 88 bytes before the body. With an IPv6 host, the fields after the born
timestamp are at other positions."""

_HEADER_BYTES: Final = np.dtype(f"V{HEADER_DTYPE.itemsize}")

# Positions relative to the body, for all kinds of hosts.
_RECONSUME_TIMES: Final = layout.RECONSUME_TIMES_POSITION - FIXED_SIZE
_PREPARED_TRANSACTION_OFFSET: Final = layout.PREPARED_TRANSACTION_OFFSET_POSITION - FIXED_SIZE
_BODY_LENGTH: Final = layout.BODY_LENGTH_POSITION - FIXED_SIZE
_Int = TypeVar("_Int", np.int32, np.int64)
_OFFSET: Final = struct.Struct(">q")
_FLAG: Final = struct.Struct(">i")
_COPY_BYTES: Final = 1024
_MAX_GATHERS: Final = 16
"""Maximum number of different field lengths for which fields of equal length are read together.
With more lengths, one slice per record is faster."""


def gather_headers(buffer: Buffer, positions: Positions) -> npt.NDArray[np.void]:
    """Read the headers of the records: HEADER_DTYPE[n]. Raises Corrupt if the buffer ends before
    the smallest possible record does."""
    positions = _check_positions(buffer, positions)
    # Gathering bytes without fields is ten times faster.
    headers: npt.NDArray[np.void] = view_unaligned(buffer, _HEADER_BYTES)[positions].view(
        HEADER_DTYPE
    )
    return headers


def _check_positions(buffer: Buffer, positions: Positions) -> Positions:
    positions = np.asarray(positions, dtype=np.int64)
    if len(positions):
        low, high = find_least(positions), find_greatest(positions)
        if low < 0 or high + MIN_RECORD_SIZE > len(buffer):
            bad = low if low < 0 else high
            room = max(len(buffer) - bad, 0) if bad >= 0 else 0
            raise make_corrupt_error(bad, "bytes", f"at least {MIN_RECORD_SIZE}", room)
    return positions


class _Fields(NamedTuple):
    """Fields of a record whose position differs from HEADER_DTYPE if a host is IPv6."""

    store_timestamps: npt.NDArray[np.int64]
    reconsume_times: npt.NDArray[np.int32]
    prepared_transaction_offsets: npt.NDArray[np.int64]


def _read_header(
    name: str, dtype: type[_Int], field: str = ""
) -> cached_property[npt.NDArray[_Int]]:
    """Return a property that reads the column `name` of the headers. `field`: attribute of
    `_Fields` that it reads instead if any host is IPv6."""

    def read(columns: RecordColumns) -> npt.NDArray[_Int]:
        if field and columns.moved is not None:
            found: npt.NDArray[_Int] = getattr(columns.moved, field)
            return found
        return columns.headers[name].astype(dtype)

    return cached_property(read)


@dataclass(frozen=True)
class RecordColumns:
    """Fields of n records, whose lengths are checked against the record sizes. Times are epoch ms.

    `headers`: HEADER_DTYPE[n], copied out of the buffer.
    `moved`: columns of the fields whose position depends on the size of the hosts, or None if all
    hosts are IPv4.
    `is_v4`: whether all hosts are IPv4.
    """

    headers: npt.NDArray[np.void]
    positions: Positions
    sizes: npt.NDArray[np.int64]
    sys_flags: npt.NDArray[np.int32]
    body_offsets: npt.NDArray[np.int64]
    body_lengths: npt.NDArray[np.int64]
    topic_offsets: npt.NDArray[np.int64]
    topic_lengths: npt.NDArray[np.int64]
    properties_offsets: npt.NDArray[np.int64]
    properties_lengths: npt.NDArray[np.int64]
    moved: _Fields | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp] | slice) -> RecordColumns:
        """Return the columns of the rows selected by a mask, indices or a slice."""
        moved: Any = self.moved and [column[rows] for column in self.moved]
        columns: list[Any] = [getattr(self, name)[rows] for name in _COLUMNS]
        columns.append(moved and _Fields(*moved))
        return RecordColumns(*columns)

    @property
    def is_v4(self) -> bool:
        return self.moved is None

    body_crcs = _read_header("body_crc", np.int32)
    queue_ids = _read_header("queue_id", np.int32)
    flags = _read_header("flag", np.int32)
    queue_offsets = _read_header("queue_offset", np.int64)
    physical_offsets = _read_header("physical_offset", np.int64)
    born_timestamps = _read_header("born_timestamp", np.int64)
    store_timestamps = _read_header("store_timestamp", np.int64, "store_timestamps")
    reconsume_times = _read_header("reconsume_times", np.int32, "reconsume_times")
    prepared_transaction_offsets = _read_header(
        "prepared_transaction_offset", np.int64, "prepared_transaction_offsets"
    )


_COLUMNS: Final = tuple(one.name for one in fields(RecordColumns) if one.name != "moved")


def record_columns(
    buffer: Buffer, positions: Positions, headers: npt.NDArray[np.void] | None = None
) -> RecordColumns:
    """Decode and check the records at these positions, except their CRCs. `headers`: from
    `gather_headers`, if available. Raises Corrupt, naming the first bad record."""
    positions = _check_positions(buffer, positions)
    if headers is None:
        headers = gather_headers(buffer, positions)
    sizes = headers["size"].astype(np.int64)
    ends = positions + sizes
    magics = headers["magic"]
    sys_flags = headers["sys_flag"].astype(np.int32)
    is_v2: npt.NDArray[np.bool_] = magics == MAGIC_V2
    has_v2 = bool(is_v2.any())
    body_offsets = positions + FIXED_SIZE
    has_v6 = bool((sys_flags & (sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6)).any())
    if has_v6:
        born_extra = np.where(sys_flags & sysflag.BORN_HOST_V6, layout.V6_EXTRA, 0)
        body_offsets += born_extra
        body_offsets += np.where(sys_flags & sysflag.STORE_HOST_V6, layout.V6_EXTRA, 0)
    # Bytes of the topic's length.
    topic_head: npt.NDArray[np.int64] | int = is_v2 + 1 if has_v2 else 1
    _require(
        buffer,
        positions,
        (is_v2 | (magics == MAGIC_V1))
        & (sizes >= MIN_RECORD_SIZE)
        & (ends <= len(buffer))
        & (body_offsets + topic_head + 2 <= ends),
    )
    if has_v6:
        body_lengths = view_unaligned(buffer, ">i4")[body_offsets + _BODY_LENGTH].astype(np.int64)
    else:
        body_lengths = headers["body_length"].astype(np.int64)
    topic_fields = body_offsets + body_lengths
    topic_offsets = topic_fields + topic_head
    _require(buffer, positions, (body_lengths >= 0) & (topic_offsets + 2 <= ends))
    topic_lengths = view_unaligned(buffer, "i1")[topic_fields].astype(np.int64)
    if has_v2:
        topic_lengths[is_v2] = view_unaligned(buffer, ">i2")[topic_fields[is_v2]]
    properties_offsets = topic_offsets + topic_lengths + 2
    _require(buffer, positions, (topic_lengths >= 0) & (properties_offsets <= ends))
    properties_lengths = view_unaligned(buffer, ">i2")[properties_offsets - 2].astype(np.int64)
    _require(buffer, positions, properties_offsets + properties_lengths == ends)
    moved = None
    if has_v6:
        longs = view_unaligned(buffer, ">i8")
        moved = _Fields(
            longs[positions + layout.STORE_TIMESTAMP_POSITION + born_extra].astype(np.int64),
            view_unaligned(buffer, ">i4")[body_offsets + _RECONSUME_TIMES].astype(np.int32),
            longs[body_offsets + _PREPARED_TRANSACTION_OFFSET].astype(np.int64),
        )
    return RecordColumns(
        headers,
        positions,
        sizes,
        sys_flags,
        body_offsets,
        body_lengths,
        topic_offsets,
        topic_lengths,
        properties_offsets,
        properties_lengths,
        moved,
    )


def _require(buffer: Buffer, positions: Positions, good: npt.NDArray[np.bool_]) -> None:
    """Raise the scalar decoder's error if any row is bad. The decoder searches the row itself,
    because an earlier one may be bad for a reason that this check does not cover."""
    if not good.all():
        for position in positions[: int(good.argmin()) + 1].tolist():
            size = layout.check_size(buffer, position, len(buffer))
            layout.locate(buffer, position, size)


def find_bad_head(
    buffer: Buffer, positions: Positions, sizes: npt.NDArray[np.int64]
) -> tuple[int, int, int] | None:
    """Return the first record that does not begin with its size and a message magic, as (row, found
    size, found magic), or None. All positions must be within the buffer."""
    if len(positions) < SCALAR_LIMIT:
        for row, (at, wanted) in enumerate(zip(positions.tolist(), sizes.tolist(), strict=True)):
            size, magic = layout.size_and_magic(buffer, at, len(buffer))
            if size != wanted or magic not in layout.MAGICS:
                return row, size, magic
        return None
    found = view_unaligned(buffer, ">i4")[positions]
    magics = view_unaligned(buffer, ">u4")[positions + layout.MAGIC_POSITION]
    good = (found == sizes) & ((magics == MAGIC_V1) | (magics == MAGIC_V2))
    if good.all():
        return None
    bad = int(good.argmin())
    return bad, int(found[bad]), int(magics[bad])


def store_timestamps(buffer: Buffer, positions: Positions) -> npt.NDArray[np.int64]:
    """Return the store times (epoch ms) of records whose sizes were checked."""
    positions = _check_positions(buffer, positions)
    if len(positions) < SCALAR_LIMIT:
        found = [_read_store_timestamp(buffer, position) for position in positions.tolist()]
        return np.array(found, np.int64)
    flags = view_unaligned(buffer, ">i4")[positions + layout.SYS_FLAG_POSITION]
    extra = np.where(flags & sysflag.BORN_HOST_V6, layout.V6_EXTRA, 0)
    places = positions + layout.STORE_TIMESTAMP_POSITION + extra
    times: npt.NDArray[Any] = view_unaligned(buffer, ">i8")[places]
    return times.astype(np.int64)


def _read_store_timestamp(buffer: Buffer, position: int) -> int:
    (flag,) = _FLAG.unpack_from(buffer, position + layout.SYS_FLAG_POSITION)
    (time,) = _OFFSET.unpack_from(buffer, position + layout.store_timestamp_position(flag))
    return int(time)


def rewrite_physical_offsets(
    buffer: bytearray | memoryview, positions: Positions, offsets: npt.ArrayLike
) -> None:
    """Write new physical offsets in place (bytes 28 to 35 of each record)."""
    positions = _check_positions(buffer, positions)
    values = np.asarray(offsets, dtype=np.int64)
    if len(values) != len(positions):
        raise Invalid(f"offsets to write: expected {len(positions)}, found {len(values)}")
    if len(positions) < SCALAR_LIMIT:
        for position, value in zip(positions.tolist(), values.tolist(), strict=True):
            _OFFSET.pack_into(buffer, position + layout.PHYSICAL_OFFSET_POSITION, value)
        return
    view_unaligned(buffer, ">i8")[positions + layout.PHYSICAL_OFFSET_POSITION] = values


def check_bodies(buffer: Buffer, columns: RecordColumns) -> npt.NDArray[np.bool_]:
    """Check each stored body against its CRC. Returns bool[n], True for a match."""
    starts, ends = columns.body_offsets, columns.body_offsets + columns.body_lengths
    view = memoryview(buffer)
    data: Buffer = view
    mean = int(columns.body_lengths.sum()) // max(len(columns), 1)
    if mean < _COPY_BYTES and isinstance(view.obj, bytes) and len(view.obj) == len(view):
        data = view.obj  # copying few bytes is cheaper than a view
    crcs = [raw_crc32(data[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    good: npt.NDArray[np.bool_] = (np.array(crcs, np.int64) & CRC_MASK) == columns.body_crcs
    return good


def check_text_ends(buffer: Buffer, columns: RecordColumns) -> npt.NDArray[np.bool_]:
    """Check that topic and properties do not end in zeros, which mean that the end of the record
    was not written. Returns bool[n]."""
    data = np.frombuffer(buffer, np.uint8)
    topic_ends = columns.topic_offsets + columns.topic_lengths - 1
    ends = columns.positions + columns.sizes - 1
    good: npt.NDArray[np.bool_] = (data[topic_ends] != 0) | (columns.topic_lengths == 0)
    good &= (data[ends] != 0) | (columns.properties_lengths == 0)
    return good


def topics(buffer: Buffer, columns: RecordColumns) -> list[str]:
    """Decode the topic of each record. Equal topics share one string."""
    encoded = _fields(buffer, columns.topic_offsets, columns.topic_lengths)
    known = {topic: topic.decode("utf-8", "replace") for topic in set(encoded)}
    return [known[topic] for topic in encoded]


def properties_of(buffer: Buffer, columns: RecordColumns) -> list[bytes]:
    """Copy the stored properties of each record."""
    return _fields(buffer, columns.properties_offsets, columns.properties_lengths)


def _fields(
    buffer: Buffer, offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> list[bytes]:
    """Return one field of each record, as its bytes [offset, offset + length) in the buffer. Fields
    of equal length are read together, unless there are too many different lengths."""
    is_few = len(offsets) < SCALAR_LIMIT
    kinds, group = (lengths, lengths) if is_few else np.unique(lengths, return_inverse=True)
    if is_few or len(kinds) > _MAX_GATHERS:
        view = memoryview(buffer)
        return [
            bytes(view[start : start + length])
            for start, length in zip(offsets.tolist(), lengths.tolist(), strict=True)
        ]
    if len(kinds) == 1 and kinds[0] > 0:
        only: list[bytes] = view_unaligned(buffer, f"V{kinds[0]}")[offsets].tolist()
        return only
    found = np.full(len(offsets), b"", dtype=object)
    for number, length in enumerate(kinds.tolist()):
        if length > 0:
            rows = np.flatnonzero(group == number)
            found[rows] = view_unaligned(buffer, f"V{length}")[offsets[rows]].tolist()
    fields: list[bytes] = found.tolist()
    return fields


def index_keys(buffer: Buffer, columns: RecordColumns) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Return the keys that the tier indexes: (row of the record int64[k], key[k]). UNIQ_KEY comes
    first in each record, unless it is blank. The keys of KEYS follow, without duplicates."""
    rows: list[int] = []
    keys: list[str] = []
    for row, data in enumerate(properties_of(buffer, columns)):
        for key in keys_to_index(data):
            rows.append(row)
            keys.append(key)
    return np.array(rows, dtype=np.int64), keys


def keys_to_index(properties: Buffer) -> list[str]:
    """Return the keys of one record, like `index_keys`."""
    found: list[str] = []
    uniq_key = find_text(properties, b"UNIQ_KEY")
    if uniq_key is not None and not is_blank(uniq_key):
        found.append(uniq_key)
    keys = find_text(properties, b"KEYS")
    if keys is not None:
        for key in split_keys(keys):
            if key not in found:
                found.append(key)
    return found


_CRC_NAME: Final = int.from_bytes(b"__CRC32#", "big")


def have_property_crcs(buffer: Buffer, columns: RecordColumns) -> npt.NDArray[np.bool_]:
    """Return bool[n]: whether each record ends in a CRC of the whole record."""
    ends = columns.positions + columns.sizes
    named: npt.NDArray[np.bool_] = view_unaligned(buffer, ">u8")[ends - CRC_BLOCK_SIZE] == _CRC_NAME
    return named


def check_property_crcs(buffer: Buffer, columns: RecordColumns) -> npt.NDArray[np.bool_]:
    """Check the CRC of each whole record. Returns bool[n]. A record without this CRC passes."""
    good = ~have_property_crcs(buffer, columns)
    for row in np.flatnonzero(~good).tolist():
        position, size = int(columns.positions[row]), int(columns.sizes[row])
        good[row] = property_crc_matches(buffer, position, size) is not False
    return good
