"""Conversion of record batches to the commit log bytes and consume queue units of a queue. The
bytes equal those of `message.encoding.RecordEncoder`, but are made column by column."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.errors import Invalid
from tieredstore.message import layout, sysflag
from tieredstore.message.buffers import Buffer
from tieredstore.message.columns.records import HEADER_DTYPE
from tieredstore.message.consume_queue import make_units
from tieredstore.message.crc import CRC_MASK, raw_crc32
from tieredstore.message.encoding import (
    DEFAULT_MAX_BODY_BYTES,
    RECORD_SLACK_BYTES,
    BodyTooLarge,
    PropertiesTooLarge,
    topic_field,
)
from tieredstore.message.hosts import LOCALHOST, V6_SIZE, format_host, parse_host
from tieredstore.message.layout import FIXED_SIZE, V6_EXTRA
from tieredstore.message.properties import MAX_PROPERTIES_BYTES
from tieredstore.scan.arrow.buffers import Bools, Int64s, content
from tieredstore.scan.arrow.encode_properties import encode_column_properties

_NO_HOST = format_host(LOCALHOST)
_MAX_BATCH_BYTES = 1 << 30
_COPY_BYTES = 1024
_V6_FLAGS = sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6
_PACKED_FLAGS = sysflag.COMPRESSED | sysflag.COMPRESSION_TYPE_MASK


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Encoded messages. `records`: adjacent commit log records. `units`: UNIT_DTYPE[n], their
    consume queue units. `next_physical_offset`: end of the records in the queue's log, bytes."""

    records: memoryview
    units: npt.NDArray[np.void]
    next_physical_offset: int


def encode_batch(
    batch: pa.RecordBatch,
    *,
    topic: str,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
) -> EncodedBatch:
    """Encode a batch as the messages [queue_offset, queue_offset + n) of a queue whose log
    continues at byte `physical_offset`. Columns are those of `schema`, and only `body` is required.
    Other missing columns and nulls get the default of a new message (0, no text, 127.0.0.1:0).
    `keys`, `tags` and `msg_id` are used if the column `properties` is missing. Bodies are stored
    unchanged, so the compression bits are removed from `sys_flag`. `topic`, `broker`, `queue_id`,
    `queue_offset` and derived columns are ignored. Raises Invalid."""
    count = batch.num_rows
    if "body" not in batch.schema.names:
        raise Invalid(f"messages to encode: expected a column body, found {batch.schema.names}")
    if not count:
        return EncodedBatch(memoryview(b""), make_units([], [], []), physical_offset)
    bodies = pc.fill_null(batch.column("body").cast(pa.binary()), b"")
    properties, tags_codes = encode_column_properties(batch)
    magic, name = topic_field(topic)
    body_ends, body_data = content(bodies)
    body_lengths = np.diff(body_ends)
    property_lengths = np.diff(content(properties)[0])
    born = _hosts(batch, "born_host")
    store = _hosts(batch, "store_host")
    sizes = _sizes(body_lengths, property_lengths, born, store) + len(name)
    _check_sizes(body_lengths, property_lengths, sizes, max_body_bytes)
    _check_batch(sizes)
    ends = physical_offset + np.cumsum(sizes)
    offsets = ends - sizes
    head = np.zeros(count, HEADER_DTYPE)
    head["size"] = sizes
    head["magic"] = magic
    head["body_crc"] = _crcs(body_ends, body_data)
    head["queue_id"] = queue_id
    head["flag"] = _numbers(batch, "flag")
    head["queue_offset"] = np.arange(queue_offset, queue_offset + count)
    head["physical_offset"] = offsets
    flags = _numbers(batch, "sys_flag").astype(np.int64) & ~(_V6_FLAGS | _PACKED_FLAGS)
    flags |= np.where(born.is_v6, sysflag.BORN_HOST_V6, 0)
    flags |= np.where(store.is_v6, sysflag.STORE_HOST_V6, 0)
    head["sys_flag"] = flags
    head["born_timestamp"] = _times(batch, "born_timestamp")
    head["store_timestamp"] = _times(batch, "store_timestamp")
    head["reconsume_times"] = _numbers(batch, "reconsume_times")
    head["body_length"] = body_lengths
    lengths = property_lengths.astype(">i2")
    joined = pc.binary_join_element_wise(
        *_heads(head, born, store),
        bodies,
        pa.scalar(name, pa.binary()),
        _make_fixed_binary(lengths),
        properties,
        pa.scalar(b"", pa.binary()),
    )
    record_ends, data = content(joined)
    return EncodedBatch(
        data.data[int(record_ends[0]) : int(record_ends[-1])],
        make_units(offsets, sizes, tags_codes),
        int(ends[-1]),
    )


def record_sizes(
    batch: pa.RecordBatch, body_lengths: Int64s, topic_lengths: Int64s, max_body_bytes: int
) -> Int64s:
    """Return the size in bytes of each record that `encode_batch` would make, as int64[n]. Bodies
    may be missing. `topic_lengths`: lengths of the topic fields. Raises Invalid like
    `encode_batch`."""
    property_lengths = np.diff(content(encode_column_properties(batch).encoded)[0])
    hosts = _hosts(batch, "born_host"), _hosts(batch, "store_host")
    sizes = _sizes(body_lengths, property_lengths, *hosts) + topic_lengths
    _check_sizes(body_lengths, property_lengths, sizes, max_body_bytes)
    return sizes


def _sizes(body_lengths: Int64s, property_lengths: Int64s, born: _Hosts, store: _Hosts) -> Int64s:
    """Return the sizes of the records without their topic fields (bytes)."""
    hosts: Int64s = V6_EXTRA * (born.is_v6.astype(np.int64) + store.is_v6)
    return FIXED_SIZE + hosts + body_lengths + 2 + property_lengths


def _heads(head: npt.NDArray[np.void], born: _Hosts, store: _Hosts) -> list[pa.Array]:
    """Return the header fields before the body of each record, as columns to concatenate. Addresses
    are separate columns if any is IPv6, because their lengths differ."""
    if not born.is_v6.any() and not store.is_v6.any():
        head["born_host"] = np.frombuffer(content(born.raw)[1], "V8", len(head))
        head["store_host"] = np.frombuffer(content(store.raw)[1], "V8", len(head))
        return [_make_fixed_binary(head)]
    letters = head.view(np.uint8).reshape(len(head), FIXED_SIZE)
    return [
        _make_fixed_binary(letters[:, : layout.BORN_HOST_POSITION]),
        born.raw,
        _make_fixed_binary(
            letters[:, layout.STORE_TIMESTAMP_POSITION : layout.STORE_HOST_POSITION]
        ),
        store.raw,
        _make_fixed_binary(letters[:, layout.RECONSUME_TIMES_POSITION :]),
    ]


def _check_sizes(
    body_lengths: Int64s, property_lengths: Int64s, sizes: Int64s, max_body_bytes: int
) -> None:
    if (property_lengths > MAX_PROPERTIES_BYTES).any():
        row = int((property_lengths > MAX_PROPERTIES_BYTES).argmax())
        raise PropertiesTooLarge(
            f"properties of row {row}: expected at most {MAX_PROPERTIES_BYTES} bytes, found "
            f"{int(property_lengths[row])}"
        )
    max_record_bytes = max_body_bytes + RECORD_SLACK_BYTES
    too_large = (body_lengths > max_body_bytes) | (sizes > max_record_bytes)
    if too_large.any():
        row = int(too_large.argmax())
        raise BodyTooLarge(
            f"message of row {row}: expected a body of at most {max_body_bytes} bytes and a record "
            f"of at most {max_record_bytes}, found {int(body_lengths[row])} and {int(sizes[row])}"
        )


def _check_batch(sizes: Int64s) -> None:
    if int(sizes.sum()) > _MAX_BATCH_BYTES:
        raise Invalid(
            f"messages to encode: expected records of at most {_MAX_BATCH_BYTES} bytes in a batch, "
            f"found {int(sizes.sum())}"
        )


def _crcs(ends: Int64s, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    first, last = int(ends[0]), int(ends[-1])
    bodies: Buffer = data.data[first:last]
    if last - first < len(ends) * _COPY_BYTES:
        bodies = bytes(bodies)  # slices of which cost less than views
    crcs = [raw_crc32(bodies[a:b]) for a, b in pairwise((ends - first).tolist())]
    return np.array(crcs, np.int64) & CRC_MASK


def _make_fixed_binary(values: npt.NDArray[np.generic]) -> pa.Array:
    """Convert n values of equal size to a binary array of n rows."""
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    width = rows.shape[1] * rows.itemsize
    offsets = np.arange(0, (len(rows) + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows)]
    )


def _numbers(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int32]:
    """Return int32[n] from a column. Missing values and nulls become 0. Raises Invalid for other
    numbers."""
    if name not in batch.schema.names:
        return np.zeros(batch.num_rows, np.int32)
    try:
        column = batch.column(name).cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise Invalid(f"column {name}: {error}") from error
    return pc.fill_null(column, 0).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _times(batch: pa.RecordBatch, name: str) -> Int64s:
    """Return times as int64[n], epoch ms. Missing values and nulls become 0."""
    if name not in batch.schema.names:
        return np.zeros(batch.num_rows, np.int64)
    column = batch.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    return pc.fill_null(column.cast(pa.int64()), 0).to_numpy(  # type: ignore[no-any-return]
        zero_copy_only=False
    )


class _Hosts(NamedTuple):
    """Addresses of a host column. `raw`: binary array with 8 bytes for an IPv4 address, 20 bytes
    for an IPv6 address."""

    raw: pa.Array
    is_v6: Bools


def _hosts(batch: pa.RecordBatch, name: str) -> _Hosts:
    """Return the addresses of a column. Equal texts are parsed only once. Raises Invalid for a text
    that is not `ip:port`."""
    count = batch.num_rows
    if name in batch.schema.names:
        texts = pc.fill_null(batch.column(name).cast(pa.string()), _NO_HOST)
    else:
        texts = pa.repeat(pa.scalar(_NO_HOST, pa.string()), count)
    encoded = texts.dictionary_encode()
    raw = [parse_host(text) for text in encoded.dictionary.to_pylist()]
    sizes = np.array([len(host) for host in raw], np.int64)[encoded.indices.to_numpy()]
    return _Hosts(pa.array(raw, pa.binary()).take(encoded.indices), sizes == V6_SIZE)
