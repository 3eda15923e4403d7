"""Hashes of message keys, staged in files so that one task finds all messages with the same key. A
file has the positions of its sections, then records sorted by hash. Hashes in a section have the
same first bits. The hash is the 128-bit BLAKE2b of topic and UNIQ_KEY. Collisions are not
expected."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Unavailable
from tieredstore.jobs.exporting.plan import RangesTask
from tieredstore.jobs.exporting.targets.storage import Files, Folder, translate_errors, try_again
from tieredstore.scan.arrow.read import arrow_batches
from tieredstore.scan.arrow.schema import STORE_TIME_MS
from tieredstore.scan.findings import LeftOut, OnFinding, raise_on_damage
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.rows import BODY_ERROR

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

RECORD = np.dtype(
    [("high", "<u8"), ("low", "<u8"), ("time_ms", "<i8"), ("offset", "<i8"), ("range", "<u4")]
)
"""Staged record: hash, store time, and position (queue offset and range number)."""
SECTIONS = 4096
_SECTION_BITS = 12
_COLUMNS = ("msg_id", "offset_msg_id", "store_timestamp", "queue_offset")
_NO_TIME_MS = 1 << 62
"""Placeholder for a store time that is too far in the past or future for 64-bit microseconds."""


class KeyedRange(msgspec.Struct, frozen=True, array_like=True):
    """Summary of a range. `rows`: number of messages that were read, with or without a key.
    `taken_from`: queue offset from which every message was read. `least_ms`, `most_ms`: store times
    of messages with a key."""

    rows: int
    taken_from: int
    least_ms: int | None = None
    most_ms: int | None = None


@dataclass(frozen=True, slots=True)
class KeysTask(RangesTask):
    """Task that stages the keys of messages. `first_range`: number of its first range. `prefix`:
    prefix of the file name. `columns`: message columns of the data files, which are read too,
    because damage in one of them excludes the message. `skip`: omit damaged messages."""

    first_range: int
    folder: Folder
    prefix: str
    columns: tuple[str, ...]
    skip: bool


@dataclass(frozen=True, slots=True)
class KeysOutcome:
    """Outcome of a key task. `name`: name of the file, empty if no message has a key."""

    name: str
    records: int
    ranges: list[KeyedRange]
    damage: int = 0
    findings: list[str] = field(default_factory=list)


def stage_keys(task: KeysTask) -> KeysOutcome:
    """Stage the keys of a task. Raises Corrupt, and Unavailable like `try_again`."""
    return try_again(task.folder, f"keys {task.key}", lambda files: _stage_once(task, files))


def _stage_once(task: KeysTask, files: Files) -> KeysOutcome:
    left_out = LeftOut()
    on_finding: OnFinding = left_out if task.skip else raise_on_damage
    ranges: list[KeyedRange] = []
    records: list[Array] = []
    with translate_errors(task.folder.place):
        with closing(task.location.connect()) as provider:
            for number, item in enumerate(task.ranges, task.first_range):
                keyed, parts = _read_keys(provider, item, number, task.columns, on_finding)
                ranges.append(keyed)
                records.extend(parts)
        total = sum(map(len, records))
        if not total:
            return KeysOutcome("", 0, ranges, left_out.count, left_out.texts)
        name = f"{task.prefix}{task.number:05d}-{uuid.uuid4().hex[:12]}.keys"
        write_array(files, name, _sort_into_sections(np.concatenate(records)))
        return KeysOutcome(name, total, ranges, left_out.count, left_out.texts)


def _read_keys(
    provider: SegmentProvider,
    item: ScanRange,
    number: int,
    columns: tuple[str, ...],
    on_finding: OnFinding,
) -> tuple[KeyedRange, list[Array]]:
    names = tuple(dict.fromkeys((*_COLUMNS, *columns)))
    topic = item.queue.topic.encode() + b"\0"
    rows, taken_from, following = 0, item.from_offset, item.from_offset
    parts: list[Array] = []
    whole = replace(item, since_ms=None)
    compares = item.since_ms is not None
    for found in arrow_batches(
        provider, whole, names, on_finding=on_finding, with_time_ms=compares
    ):
        batch = select_since(found, item.since_ms)
        if not batch.num_rows:
            continue
        rows += batch.num_rows
        offsets = batch.column("queue_offset").to_numpy()
        missing = np.flatnonzero(np.diff(offsets, prepend=following - 1) != 1)
        if len(missing):
            taken_from = int(offsets[missing[-1]])
        following = int(offsets[-1]) + 1
        if BODY_ERROR in names:
            batch = batch.filter(pc.is_null(batch.column(BODY_ERROR)))
        part = _hash_keys(topic, batch.select(_COLUMNS), number)
        if len(part):
            parts.append(part)
    if following != item.until_offset:
        taken_from = item.until_offset
    if not parts:
        return KeyedRange(rows, taken_from), parts
    least_ms = min(int(part["time_ms"].min()) for part in parts)
    most_ms = max(int(part["time_ms"].max()) for part in parts)
    return KeyedRange(rows, taken_from, least_ms, most_ms), parts


def select_since(batch: pa.RecordBatch, since_ms: int | None) -> pa.RecordBatch:
    """Select the rows that were stored at `since_ms` or later, and remove the column
    STORE_TIME_MS."""
    if since_ms is None:
        return batch
    chosen = batch.filter(pc.greater_equal(batch.column(STORE_TIME_MS), since_ms))
    return chosen.drop_columns([STORE_TIME_MS])


def _hash_keys(topic: bytes, batch: pa.RecordBatch, number: int) -> Array:
    """Return the records of messages with a UNIQ_KEY. A message without one has equal `msg_id` and
    `offset_msg_id`."""
    ids = batch.column("msg_id")
    has_key = pc.and_(
        pc.not_equal(ids, batch.column("offset_msg_id")), pc.not_equal(pc.utf8_length(ids), 0)
    )
    batch = batch.filter(has_key)
    found = np.zeros(batch.num_rows, RECORD)
    keys = batch.column("msg_id").cast(pa.binary()).to_pylist()
    digests = b"".join([blake2b(topic + key, digest_size=16).digest() for key in keys])
    halves = np.frombuffer(digests, "<u8").reshape(-1, 2)
    found["high"], found["low"] = halves[:, 0], halves[:, 1]
    times_us = batch.column("store_timestamp").view(pa.int64())
    known = times_us.is_valid().to_numpy(zero_copy_only=False)
    times_ms = pc.fill_null(times_us, 0).to_numpy() // 1000
    found["time_ms"] = np.where(known, times_ms, _NO_TIME_MS)
    found["offset"] = batch.column("queue_offset").to_numpy()
    found["range"] = number
    return found


def _sort_into_sections(records: Array) -> list[Array]:
    records = records[np.argsort(records["high"], kind="stable")]
    firsts = np.arange(SECTIONS, dtype=np.uint64) << np.uint64(64 - _SECTION_BITS)
    places = np.append(np.searchsorted(records["high"], firsts), len(records))
    return [places.astype("<u8"), records]


def read_section(files: Files, name: str, first: int, last: int) -> Array:
    """Read the records of the sections [first, last) of a file. Raises Unavailable."""
    with closing(files.open(name)) as stream:
        places = _read_at(stream, name, np.dtype("<u8"), 8 * first, last - first + 1)
        begin, end = int(places[0]), int(places[-1])
        position = 8 * (SECTIONS + 1) + begin * RECORD.itemsize
        return _read_at(stream, name, RECORD, position, end - begin)


def write_array(files: Files, name: str, parts: Sequence[Array]) -> None:
    """Write arrays into a new file. The file is durable on return."""
    stream = files.create(name)
    for part in parts:
        stream.write(part.tobytes())
    stream.close()
    files.seal(name)


def read_array(files: Files, name: str, kind: np.dtype[Any], first: int, count: int) -> Array:
    """Read `count` items of a file, starting at item `first`. Raises Unavailable."""
    with closing(files.open(name)) as stream:
        return _read_at(stream, name, kind, first * kind.itemsize, count)


def _read_at(stream: Any, name: str, kind: np.dtype[Any], position: int, count: int) -> Array:
    data = bytearray()
    length = count * kind.itemsize
    stream.seek(position)
    while len(data) < length:
        piece = stream.read(length - len(data))
        if not piece:
            raise Unavailable(
                f"{name}: a staged file is cut off: expected {length} bytes at {position}, found "
                f"{len(data)}",
                path=name,
            )
        data += piece
    return np.frombuffer(bytes(data), kind)
