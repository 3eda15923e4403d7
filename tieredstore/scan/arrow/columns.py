"""Conversion of the checked records of a batch to Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.message import layout, sysflag
from tieredstore.message.buffers import view_unaligned
from tieredstore.message.hosts import V4_SIZE, V6_SIZE, format_host
from tieredstore.scan.arrow.buffers import (
    Bools,
    Int64s,
    gather_values,
    interleave_rows,
    make_constant_text,
    make_fixed_text,
    make_repeated_text,
)
from tieredstore.scan.arrow.properties import PropertyColumns
from tieredstore.scan.arrow.schema import STORE_TIME_MS, TYPES, schema_of
from tieredstore.scan.read.batch import MessageBatch
from tieredstore.scan.read.joined import JoinedBatch

_HEX = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), dtype=np.uint16)
_MOST_MS = (2**63 - 1) // 1000


class ArrowColumns:
    """Arrow columns of one batch of messages, created on demand. `inflated`: decompressed bodies of
    the rows with a compressed body, or None if decompression failed. `errors`: the reason for each
    failure, or None."""

    def __init__(
        self,
        batch: MessageBatch | JoinedBatch,
        inflated: Sequence[bytes | None] = (),
        errors: Sequence[str | None] = (),
    ) -> None:
        self._batch = batch
        self._columns = batch.columns
        self._inflated = inflated
        self._errors = errors
        self._properties: PropertyColumns | None = None
        self._ids: pa.Array | None = None

    @property
    def properties(self) -> PropertyColumns:
        if self._properties is None:
            self._properties = PropertyColumns(self._batch.buffer, self._columns)
        return self._properties

    def record_batch(self, names: tuple[str, ...]) -> pa.RecordBatch:
        """Return a record batch of columns that `schema.choose_columns` returned."""
        return pa.RecordBatch.from_arrays(
            [self.column(name) for name in names], schema=schema_of(names)
        )

    def column(self, name: str) -> pa.Array:
        """Return one column of `schema.TYPES`, or STORE_TIME_MS."""
        return self.number(NUMBERS[name]) if name in NUMBERS else _MAKERS[name](self)

    def offset_msg_id(self) -> pa.Array:
        if self._ids is None:
            headers = self._columns.headers
            offsets = _bytes(headers["physical_offset"])
            parts = [
                (rows, _message_ids(_bytes(hosts), offsets if rows is None else offsets[rows]))
                for rows, hosts in self._addresses("store_host")
            ]
            self._ids = interleave_rows(parts)
        return self._ids

    def hosts(self, which: str) -> pa.Array:
        return interleave_rows([(rows, _host_text(raw)) for rows, raw in self._addresses(which)])

    def _addresses(self, which: str) -> Iterator[tuple[Bools | None, npt.NDArray[np.void]]]:
        """Yield the IPv4 addresses (8 bytes each), then the IPv6 addresses (20 bytes each), each
        with a mask of its rows. The mask is None if all rows have IPv4 addresses."""
        columns, buffer = self._columns, self._batch.buffer
        if columns.is_v4:
            yield None, columns.headers[which]
            return
        flag = sysflag.BORN_HOST_V6 if which == "born_host" else sysflag.STORE_HOST_V6
        is_v6: Bools = (columns.sys_flags & flag) != 0
        for rows, size in ((~is_v6, V4_SIZE), (is_v6, V6_SIZE)):
            if which == "born_host":
                starts = columns.positions[rows] + layout.BORN_HOST_POSITION
            else:  # 16 bytes in front of the body is what follows it
                starts = columns.body_offsets[rows] - 16 - size
            yield rows, view_unaligned(buffer, f"V{size}")[starts]

    # The body

    def body(self) -> pa.Array:
        columns = self._columns
        if not self._inflated:
            return gather_values(self._batch.buffer, columns.body_offsets, columns.body_lengths)
        packed = find_compressed_rows(self._batch)
        plain = ~packed
        stored = gather_values(
            self._batch.buffer, columns.body_offsets[plain], columns.body_lengths[plain]
        )
        return interleave_rows([(plain, stored), (packed, pa.array(self._inflated, pa.binary()))])

    def body_length(self) -> pa.Array:
        lengths = self._columns.body_lengths.astype(np.int32)
        if not self._inflated:
            return pa.array(lengths)
        packed = find_compressed_rows(self._batch)
        lengths[packed] = [len(body or b"") for body in self._inflated]
        is_null = np.zeros(len(lengths), np.bool_)
        is_null[packed] = [body is None for body in self._inflated]
        return pa.array(lengths, mask=is_null)

    def body_error(self) -> pa.Array:
        count = len(self._columns)
        if not any(self._errors):
            return pa.nulls(count, pa.string())
        packed = find_compressed_rows(self._batch)
        none = pa.nulls(count - len(self._errors), pa.string())
        return interleave_rows([(~packed, none), (packed, pa.array(self._errors, pa.string()))])

    # Properties

    def msg_id(self) -> pa.Array:
        unique = self.properties.values(b"UNIQ_KEY")
        return pc.coalesce(unique, self.offset_msg_id()) if unique.null_count else unique

    def number(self, name: str) -> pa.Array:
        return pa.array(getattr(self._columns, name))

    def time(self, name: str) -> pa.Array:
        return _time(getattr(self._columns, name))

    def stored_length(self) -> pa.Array:
        return pa.array(self._columns.body_lengths.astype(np.int32))

    def owner(self, name: str) -> pa.Array:
        """Return a string array with an attribute of each row's queue. `name`: the attribute, for
        example `topic`."""
        owners = self._batch.owners()
        return make_repeated_text([(getattr(queue, name), rows) for queue, rows in owners])


def find_compressed_rows(batch: MessageBatch | JoinedBatch) -> Bools:
    """Return a mask (bool[n]) of the rows with a compressed, non-empty body."""
    columns = batch.columns
    packed: Bools = ((columns.sys_flags & sysflag.COMPRESSED) != 0) & (columns.body_lengths > 0)
    return packed


def find_sayable_times(times_ms: Int64s) -> Bools:
    """Return a mask (bool[n]) of the times that microseconds can represent."""
    sayable: Bools = (times_ms <= _MOST_MS) & (times_ms >= -_MOST_MS)
    return sayable


def _time(times_ms: Int64s) -> pa.Array:
    """Return times in microseconds. A time more than 290,000 years away does not fit and becomes
    null."""
    sayable = find_sayable_times(times_ms)
    if sayable.all():
        return pa.array(times_ms * 1000).view(TYPES["store_timestamp"])
    return pa.array(np.where(sayable, times_ms, 0) * 1000, mask=~sayable).view(
        TYPES["store_timestamp"]
    )


def _bytes(raw: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Return the bytes of an array's elements as uint8[n, size of an element]."""
    return np.ascontiguousarray(raw).view(np.uint8).reshape(len(raw), raw.itemsize)


def _host_text(raw: npt.NDArray[np.void]) -> pa.Array:
    """Return addresses as text. Equal addresses are converted only once."""
    data = np.ascontiguousarray(raw)
    if len(data) and data.tobytes() == data[:1].tobytes() * len(data):
        return make_constant_text(format_host(data[:1].tobytes()), len(data))
    fixed = pa.Array.from_buffers(
        pa.binary(data.itemsize), len(data), [None, pa.py_buffer(data.view(np.uint8))]
    )
    encoded = fixed.dictionary_encode()
    texts = [format_host(host) for host in encoded.dictionary.to_pylist()]
    return pa.array(texts, type=pa.string()).take(encoded.indices)


def _message_ids(hosts: npt.NDArray[np.uint8], offsets: npt.NDArray[np.uint8]) -> pa.Array:
    """Return message ids: host and physical offset of each row in upper-case hex."""
    size = hosts.shape[1]
    letters = np.empty((len(hosts), size + 8), np.uint16)
    if len(hosts) and hosts.tobytes() == hosts[:1].tobytes() * len(hosts):
        letters[:, :size] = _HEX[hosts[0]]
    else:
        letters[:, :size] = _HEX[hosts]
    letters[:, size:] = _HEX[offsets]
    return make_fixed_text(letters.view(np.uint8))


NUMBERS = {
    "queue_id": "queue_ids",
    "queue_offset": "queue_offsets",
    "body_crc": "body_crcs",
    "physical_offset": "physical_offsets",
    "sys_flag": "sys_flags",
    "flag": "flags",
    "reconsume_times": "reconsume_times",
    STORE_TIME_MS: "store_timestamps",
}
"""Columns whose values are copied unchanged from the records. For each column, its name in
`RecordColumns`."""
_MAKERS: dict[str, Callable[[ArrowColumns], pa.Array]] = {
    "topic": lambda columns: columns.owner("topic"),
    "broker": lambda columns: columns.owner("broker"),
    "msg_id": ArrowColumns.msg_id,
    "offset_msg_id": ArrowColumns.offset_msg_id,
    "keys": lambda columns: columns.properties.keys(),
    "tags": lambda columns: columns.properties.values(b"TAGS"),
    "properties": lambda columns: columns.properties.maps(),
    "born_timestamp": lambda columns: columns.time("born_timestamps"),
    "store_timestamp": lambda columns: columns.time("store_timestamps"),
    "body": ArrowColumns.body,
    "body_length": ArrowColumns.body_length,
    "body_error": ArrowColumns.body_error,
    "stored_length": ArrowColumns.stored_length,
    "born_host": lambda columns: columns.hosts("born_host"),
    "store_host": lambda columns: columns.hosts("store_host"),
}
