"""Runs of lite topics, as bytes (`docs/adr/0021-lite-topics-in-the-tier.md`). A run locates
messages of light queues in the commit logs of their parents. Its units are sorted by the key of the
light queue."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.buffers import Buffer
from tieredstore.message.crc import raw_crc32

FORMAT_VERSION: Final = 1
BLOCK_UNITS: Final = 512
"""Number of units in a block. Each block of units has one checksum."""
UNIT_DTYPE: Final = np.dtype(
    [(name, ">i8") for name in ("offset", "queue_offset", "position", "time_ms")]
    + [(name, ">i4") for name in ("size", "queue_id", "topic_id")]
)
"""Unit of a message. `offset`: offset in the light queue. `queue_offset`, `queue_id`: place in the
parent. `position`, `size`: bytes in the commit log of the parent's queue. `time_ms`: store time.
`topic_id`: id of the parent in the tier's metadata."""
_OFFSETS: Final = [(name, ">i8") for name in ("first", "end", "time_ms", "deleted")]
NAME_DTYPE: Final = np.dtype([("key", ">u8"), *_OFFSETS, ("count", ">i4")])
"""Entry of a light queue. `first`, `end`: offset of its first unit, and after its last unit.
`time_ms`: store time of its last message. `deleted`: messages at smaller offsets are deleted.
`count`: number of its units."""
Table: TypeAlias = npt.NDArray[np.void]

_MAGIC: Final = b"TSLITE\0\1"
_HEADER: Final = struct.Struct(">8sIIIII")
HEADER_BYTES: Final = _HEADER.size
UNIT_BYTES: Final = UNIT_DTYPE.itemsize
BLOCK_BYTES: Final = BLOCK_UNITS * UNIT_BYTES


def make_queue_key(topic_id: int, queue: str) -> int:
    """Return the key of a light queue: a 64-bit hash of its name and its parent's topic id. A
    recreated parent has a new topic id, so its light queues get other keys."""
    name = f"{topic_id}:{queue}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big")


class CoveredRange(msgspec.Struct, frozen=True, array_like=True):
    """Range [begin, end) of queue offsets in one queue of a parent, whose messages the run locates.
    `log_end`: end of the last of them in the commit log of the queue (bytes)."""

    topic: str
    topic_id: int
    queue_id: int
    begin: int
    end: int
    log_end: int


class RunNotes(msgspec.Struct, frozen=True):
    """Description of a run, which may consist of several objects.

    `parts`: number of objects.
    `part`: number of this object.
    `group`: name of the first object.
    `merged`: names of the objects that the run replaces.
    """

    level: int = 0
    group: str = ""
    part: int = 0
    parts: int = 1
    covered: tuple[CoveredRange, ...] = ()
    merged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunContent:
    """Content of a run or a part of one. `names`: NAME_DTYPE, ascending by key. `units`:
    UNIT_DTYPE, in the order of the names, then by offset."""

    names: Table
    units: Table


class RunHead(NamedTuple):
    """Beginning of a run's object. `names`: NAME_DTYPE. `checksums`: CRC-32 of each block of units.
    `units_begin`: position of the first unit (bytes)."""

    notes: RunNotes
    names: Table
    checksums: npt.NDArray[np.uint32]
    units_begin: int


def sort_units(
    keys: npt.NDArray[np.uint64],
    units: Table,
    deleted: Mapping[int, int],
    *,
    keeps_deleted: bool = True,
) -> RunContent:
    """Sort units by light queue and offset, without duplicates.

    `keys`: key of the light queue of each unit.
    `deleted`: offset by key, messages at smaller offsets are deleted. Of the deleted messages of a
    light queue, only the last one of each queue of the parent keeps its unit, until it expires.
    `keeps_deleted`: whether the result has all deletions, because they may apply to messages in
    other runs. Otherwise it has those whose messages are not expired.
    """
    order = np.lexsort((units["time_ms"], units["offset"], keys))
    keys, units = keys[order], units[order]
    offsets = units["offset"].astype(np.int64)
    kept = np.ones(len(keys), dtype=bool)
    if len(keys):  # the later of two messages at an offset counts
        kept[:-1] = (keys[1:] != keys[:-1]) | (offsets[1:] != offsets[:-1])
    dead = keys[:0]
    marks = np.array(sorted(deleted), dtype=np.uint64)
    limits = np.array([deleted[int(key)] for key in marks], dtype=np.int64)
    if len(marks) and len(keys):
        places = np.minimum(np.searchsorted(marks, keys), len(marks) - 1)
        rows = np.flatnonzero(kept & (marks[places] == keys) & (offsets < limits[places]))
        rows = rows[np.lexsort((units["position"][rows], units["queue_id"][rows], keys[rows]))]
        is_same = (np.diff(keys[rows]) == 0) & (np.diff(units["queue_id"][rows]) == 0)
        kept[rows[:-1][is_same]] = False
        dead = keys[rows]
    if not keeps_deleted:
        is_needed = np.isin(marks, dead)
        marks, limits = marks[is_needed], limits[is_needed]
    keys, units = keys[kept], units[kept]
    present, starts, counts = np.unique(keys, return_index=True, return_counts=True)
    every = np.union1d(present, marks)
    names = np.zeros(len(every), dtype=NAME_DTYPE)
    names["key"] = every
    if len(present):
        at = np.searchsorted(every, present)
        lasts = starts + counts - 1
        names["first"][at] = units["offset"][starts]
        names["end"][at] = units["offset"][lasts] + 1
        names["time_ms"][at] = units["time_ms"][lasts]
        names["count"][at] = counts
    names["deleted"][np.searchsorted(every, marks)] = limits
    return RunContent(names, units)


def join_units(tables: Iterable[Table]) -> Table:
    """Concatenate the units of several tables."""
    return np.concatenate([np.zeros(0, UNIT_DTYPE), *tables])


def merge_contents(contents: Sequence[RunContent]) -> RunContent:
    """Merge the contents of several runs, with all deletions. See `sort_units`."""
    keys = [np.repeat(one.names["key"].astype(np.uint64), one.names["count"]) for one in contents]
    return sort_units(
        np.concatenate([np.zeros(0, np.uint64), *keys]),
        join_units(one.units for one in contents),
        find_deletions(one.names for one in contents),
    )


def find_deletions(tables: Iterable[Table]) -> dict[int, int]:
    """Return the deletions in tables of names, by key."""
    found: dict[int, int] = {}
    for names in tables:
        for row in names[names["deleted"] > 0]:
            key = int(row["key"])
            found[key] = max(int(row["deleted"]), found.get(key, 0))
    return found


def drop_dead_units(
    content: RunContent, log_begins: Mapping[tuple[int, int], int], *, keeps_deleted: bool
) -> RunContent:
    """Remove the units whose messages are no longer in the tier. `log_begins`: first byte of the
    commit log of each existing queue, by (topic id, queue id). `keeps_deleted`: see
    `sort_units`."""
    units = content.units
    queues = units["topic_id"].astype(np.int64) << 32 | units["queue_id"].astype(np.int64)
    begins = np.full(len(units), np.iinfo(np.int64).max)
    for topic_id, queue_id in log_begins:
        begins[queues == (topic_id << 32 | queue_id)] = log_begins[topic_id, queue_id]
    kept = units["position"].astype(np.int64) >= begins
    if keeps_deleted and kept.all():
        return content
    keys = np.repeat(content.names["key"].astype(np.uint64), content.names["count"])
    deleted = find_deletions([content.names])
    return sort_units(keys[kept], units[kept], deleted, keeps_deleted=keeps_deleted)


def encode_run(notes: RunNotes, content: RunContent) -> bytes:
    """Encode one object of a run."""
    data = content.units.astype(UNIT_DTYPE, copy=False).tobytes()
    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
    sums = np.array([raw_crc32(block) for block in blocks], dtype=">u4").tobytes()
    text = msgspec.json.encode(notes)
    head = b"".join((text, content.names.astype(NAME_DTYPE, copy=False).tobytes(), sums))
    sizes = (len(text), len(content.names), len(content.units))
    packed = _HEADER.pack(_MAGIC, 0, raw_crc32(head), *sizes)
    packed = _HEADER.pack(_MAGIC, raw_crc32(packed), raw_crc32(head), *sizes)
    return b"".join((packed, head, data))


def measure_head(data: Buffer, origin: str) -> int:
    """Return the number of bytes before the units of a run. `data`: at least the first HEADER_BYTES
    bytes. Raises Corrupt, and Invalid for a newer version."""
    _, text, names, units = _read_header(data, origin)
    blocks = -(-units // BLOCK_UNITS)
    return HEADER_BYTES + text + names * NAME_DTYPE.itemsize + 4 * blocks


def decode_head(data: Buffer, origin: str) -> RunHead:
    """Decode the bytes before the units of a run (`measure_head`). Raises Corrupt, and Invalid for
    a newer version."""
    crc, text_bytes, name_count, unit_count = _read_header(data, origin)
    end = measure_head(data, origin)
    head = memoryview(data)[HEADER_BYTES:end]
    if len(data) < end or raw_crc32(head) != crc:
        raise Corrupt(f"{origin}: the list of light queues is damaged", path=origin)
    try:
        notes = msgspec.json.decode(bytes(head[:text_bytes]), type=RunNotes)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{origin}: the notes cannot be read: {error}", path=origin) from error
    names_end = text_bytes + name_count * NAME_DTYPE.itemsize
    names = np.frombuffer(head[text_bytes:names_end], NAME_DTYPE)
    sums = np.frombuffer(head[names_end:], ">u4").astype(np.uint32)
    if int(names["count"].sum(dtype=np.int64)) != unit_count:
        raise Corrupt(f"{origin}: the numbers of units differ", path=origin)
    return RunHead(notes, names, sums, end)


def decode_units(
    data: Buffer, first_block: int, checksums: npt.NDArray[np.uint32], origin: str
) -> Table:
    """Decode whole blocks of units, starting with block `first_block`. Raises Corrupt for damaged
    blocks."""
    view = memoryview(data)
    for number, at in enumerate(range(0, len(view), BLOCK_BYTES), first_block):
        if raw_crc32(view[at : at + BLOCK_BYTES]) != int(checksums[number]):
            raise Corrupt(f"{origin}: block {number} of the units is damaged", path=origin)
    return np.frombuffer(view, UNIT_DTYPE)


def _read_header(data: Buffer, origin: str) -> tuple[int, int, int, int]:
    if len(data) < HEADER_BYTES:
        raise Corrupt(f"{origin}: has {len(data)} bytes, which is no run", path=origin)
    magic, own, crc, text, names, units = _HEADER.unpack_from(data)
    if magic[:7] == _MAGIC[:7] and magic[7] > FORMAT_VERSION:
        raise Invalid(f"{origin}: has format {magic[7]}, this program knows {FORMAT_VERSION}")
    if magic != _MAGIC or raw_crc32(_HEADER.pack(magic, 0, crc, text, names, units)) != own:
        raise Corrupt(f"{origin}: the header of the run is damaged", path=origin)
    return crc, text, names, units
