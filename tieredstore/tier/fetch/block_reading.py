"""Reads a block of messages from a queue in the tier: first the consume queue units, then the
records that they locate. Unusable units and records are omitted and counted, and do not affect
other messages (`docs/formats/consume-queue.md`). Every message keeps the queue offset of its
unit."""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from operator import ne
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.block_checksums import BlocksDamaged, find_overlaps
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.message import layout
from tieredstore.message.buffers import view_unaligned
from tieredstore.message.columns.split import split_messages
from tieredstore.message.consume_queue import UNKNOWN_TAGS_CODE
from tieredstore.message.hashes import tags_code
from tieredstore.message.record import StoredMessage
from tieredstore.tier.fetch.read_ahead import MESSAGE_OVERHEAD_BYTES, Block
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.reading import Reading, join_readings

GAP_BYTES = 1 << 20
"""Maximum number of unneeded bytes between two messages that are read in one request. Such bytes
are left by an upload that was repeated after a crash."""

SMALL_BLOCK_MESSAGES: Final = 64
"""Number of messages up to which a block is processed message by message. For so few messages,
arrays are slower."""

_HEAD: Final = struct.Struct(">iI4xi4xq")
"""Size, magic, queue id and queue offset of a record."""

_NO_LIMIT = 2**63 - 1
_log = logging.getLogger(__name__)
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Run:
    """Units whose records are close together in the commit log and are read at once. The records
    are in bytes [start, end). `rows`: indices of the units."""

    rows: Longs
    start: int
    end: int


class _Wanted(NamedTuple):
    """Units whose messages are requested. `start`: queue offset of the first unit."""

    file: FlatMessageFile
    key: QueueKey
    start: int
    units: npt.NDArray[np.void]


class _Found(NamedTuple):
    """Messages that were read. `rows`: index of each message's unit. `sizes`: size of each message
    (bytes). `buffer_bytes`: size of the buffers that contain the messages."""

    messages: list[StoredMessage]
    rows: Longs
    sizes: Longs
    buffer_bytes: int


def read_block(
    file: FlatMessageFile,
    start: int,
    count: int,
    limit_bytes: int,
    *,
    room_bytes: int = _NO_LIMIT,
    check_bodies: bool = False,
) -> Reading[Block]:
    """Read at most `count` messages from queue offset `start`. Reads their units, then their
    records as `read_named` does."""
    units = yield from file.read_units(start, count)
    block = yield from read_named(
        file, start, units, limit_bytes, room_bytes=room_bytes, check_bodies=check_bodies
    )
    return block


def read_named(
    file: FlatMessageFile,
    start: int,
    units: npt.NDArray[np.void],
    limit_bytes: int,
    *,
    room_bytes: int = _NO_LIMIT,
    check_bodies: bool = False,
) -> Reading[Block]:
    """Read the messages of `units`. The block ends when its messages span `limit_bytes` of the
    commit log or need `room_bytes` in the cache, but has at least one message. Without units,
    `start` is in a hole. The block is then empty and covers the rest of the hole.

    `start`: queue offset of the first unit.
    `check_bodies`: omit messages whose body does not match its CRC.

    Raises Unavailable, and Corrupt if the bytes of a whole range are missing.
    """
    key = QueueKey(file.topic, file.queue_id)
    if not len(units):
        return _hole(file, key, start)
    if len(units) <= SMALL_BLOCK_MESSAGES and not check_bodies:
        block = yield from _read_small(file, key, start, units, limit_bytes, room_bytes)
        if block is not None:
            return block
    offsets = units["physical_offset"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    ends = offsets + sizes
    if _are_in_order(file, offsets, sizes, ends):
        count, _ = find_fitting(units, limit_bytes, room_bytes)
        runs = [_Run(np.arange(count), int(offsets[0]), int(ends[count - 1]))]
    else:
        runs, count = _runs(file, offsets, sizes, min(limit_bytes, room_bytes))
    found = yield from _read_runs(_Wanted(file, key, start, units), runs)
    if check_bodies:
        found = [_keep(part, list(map(_has_good_body, part.messages))) for part in found]
    return _block(file, key, start, start + count, found)


def _read_small(
    file: FlatMessageFile,
    key: QueueKey,
    start: int,
    units: npt.NDArray[np.void],
    limit_bytes: int,
    room_bytes: int,
) -> Reading[Block | None]:
    """Read the messages of a few units in the usual case. `start`: queue offset of the first unit.
    Returns None if `read_named` must handle the units, because records are not adjacent, have
    different formats, or are invalid, or because a limit is reached. Raises the errors of the
    reads."""
    offsets, sizes, tags_codes = zip(*units.tolist(), strict=True)
    count, begin = len(offsets), offsets[0]
    *positions, length = accumulate(sizes, initial=0)
    if (
        min(sizes) < layout.MIN_RECORD_SIZE
        or any(map(ne, offsets, accumulate(sizes, initial=begin)))
        or begin < file.commit_log_min_offset
        or begin + length > file.commit_log_commit_offset
        or length > limit_bytes
        or length + MESSAGE_OVERHEAD_BYTES * (count + 1) > room_bytes
        or UNKNOWN_TAGS_CODE in tags_codes
    ):
        return None
    try:
        buffer = yield from file.read_commit_log(begin, length)
    except BlocksDamaged:
        return None
    if len(buffer) < length:
        return None
    unpack_head = _HEAD.unpack_from
    heads = [unpack_head(buffer, position) for position in positions]
    magic, stop = heads[0][1], start + count
    expected = zip(sizes, repeat(magic), repeat(key.queue_id), range(start, stop), strict=False)
    if magic not in layout.MAGICS or heads != list(expected):
        return None
    messages = list(map(StoredMessage, repeat(buffer), positions, sizes, tags_codes))
    ends = [*positions[1:], length]
    return Block(file, key, start, stop, messages, range(start, stop), ends, length)


def find_fitting(units: npt.NDArray[np.void], limit_bytes: int, room_bytes: int) -> tuple[int, int]:
    """Return how many units fit into a block (at least one), and the memory that the block needs in
    the cache (bytes). The records of the units must be adjacent."""
    spans = units["physical_offset"].astype(np.int64) + units["size"] - units["physical_offset"][0]
    weights = spans + MESSAGE_OVERHEAD_BYTES * np.arange(2, len(spans) + 2)
    count = min(_count_fitting(spans, limit_bytes), _count_fitting(weights, room_bytes))
    return count, int(weights[count - 1])


def count_reaching(units: npt.NDArray[np.void], enough_bytes: int, limit_bytes: int) -> int:
    """Return how many units are needed for `enough_bytes` of messages. If all messages together are
    smaller, returns the number of units. Messages above `limit_bytes` are not counted, because no
    read returns them."""
    if len(units) <= SMALL_BLOCK_MESSAGES:
        total = 0
        for count, size in enumerate(units["size"].tolist(), 1):
            total += size if 0 < size <= limit_bytes else 0
            if total >= enough_bytes:
                return count
        return len(units)
    sizes = units["size"].astype(np.int64)
    sums = np.cumsum(np.where((sizes > 0) & (sizes <= limit_bytes), sizes, 0))
    return min(int(np.searchsorted(sums, enough_bytes)) + 1, len(units))


def _count_fitting(sums: Longs, limit: int) -> int:
    return max(int(np.searchsorted(sums, limit, side="right")), 1)


def _hole(file: FlatMessageFile, key: QueueKey, start: int) -> Block:
    end = file.next_valid_offset(start)
    if end <= start:
        raise Corrupt(
            f"{key.topic}/{key.queue_id}: no consume queue unit at queue offset {start}, which the "
            "queue should have",
            topic=key.topic,
            queue_id=key.queue_id,
            offset=start,
        )
    return Block(file, key, start, end, [], [], [], 0)


def _are_in_order(file: FlatMessageFile, offsets: Longs, sizes: Longs, ends: Longs) -> bool:
    """Return whether the units refer to adjacent records in the commit log, as valid units do."""
    return bool(
        offsets[0] >= file.commit_log_min_offset
        and offsets.max() <= file.commit_log_commit_offset
        and ends[-1] <= file.commit_log_commit_offset
        and (sizes > 0).all()
        and (offsets[1:] >= ends[:-1]).all()
        and (offsets[1:] - ends[:-1] <= GAP_BYTES).all()
    )


def _runs(
    file: FlatMessageFile, offsets: Longs, sizes: Longs, limit_bytes: int
) -> tuple[list[_Run], int]:
    """Group the units that point into the commit log into runs, up to `limit_bytes`. Also return
    the number of units that were examined, including unusable ones."""
    low, high = file.commit_log_min_offset, file.commit_log_commit_offset
    usable = (offsets >= low) & (sizes > 0) & (sizes <= high - offsets)
    runs: list[_Run] = []
    rows: list[int] = []
    start = end = total = 0
    for row, (offset, size, is_usable) in enumerate(
        zip(offsets.tolist(), sizes.tolist(), usable.tolist(), strict=True)
    ):
        if not is_usable:
            continue
        joins = bool(rows) and end <= offset <= end + GAP_BYTES
        total += offset + size - end if joins else size
        if total > limit_bytes and (runs or rows):
            return [*runs, *_run(rows, start, end)], row
        if not joins:
            runs += _run(rows, start, end)
            rows, start = [], offset
        rows.append(row)
        end = offset + size
    return [*runs, *_run(rows, start, end)], len(offsets)


def _run(rows: list[int], start: int, end: int) -> list[_Run]:
    return [_Run(np.array(rows, dtype=np.int64), start, end)] if rows else []


def _read_runs(wanted: _Wanted, runs: Sequence[_Run]) -> Reading[list[_Found]]:
    outcomes = yield from join_readings([_read_run(wanted, run) for run in runs])
    found: list[_Found] = []
    for outcome in outcomes:
        if isinstance(outcome, TieredStoreError):
            # The only run, or the backend is unavailable: no other messages can be saved.
            if len(runs) == 1 or isinstance(outcome, Unavailable):
                raise outcome
        else:
            found += outcome
    return found


def _read_run(wanted: _Wanted, run: _Run) -> Reading[list[_Found]]:
    file, key, start, units = wanted
    length = run.end - run.start
    try:
        buffer = yield from file.read_commit_log(run.start, length)
    except BlocksDamaged as error:
        return (yield from _read_around(wanted, run, error))
    if len(buffer) < length:
        raise Corrupt(
            f"{key.topic}/{key.queue_id}: commit log at {run.start}: expected {length} bytes, "
            f"found {len(buffer)}",
            topic=key.topic,
            queue_id=key.queue_id,
            offset=run.start,
        )
    chosen = units[run.rows]
    split = split_messages(chosen, buffer, buffer_offset=run.start)
    if split.units_seen < len(chosen):
        # If a unit points to a coda, its record ends 16 bytes later.
        try:
            buffer = yield from file.read_commit_log(run.start, length + layout.CODA_SIZE)
        except BlocksDamaged as error:
            return (yield from _read_around(wanted, run, error))
        split = split_messages(chosen, buffer, buffer_offset=run.start)
    rows, messages, named = run.rows[split.indexes], split.messages, chosen[split.indexes]
    sizes = named["size"].astype(np.int64)
    own = _is_own(key, start + rows, messages, buffer, named["physical_offset"] - run.start)
    found = _keep(_Found(messages, rows, sizes, len(buffer)), own)
    if (named["tags_code"] == UNKNOWN_TAGS_CODE).any():
        for message in found.messages:
            message.tags_code = tags_code(message.tags)
    return [found]


def _read_around(wanted: _Wanted, run: _Run, error: BlocksDamaged) -> Reading[list[_Found]]:
    """Read the messages of a run that are outside damaged blocks. A message in a damaged block may
    be wrong, so it is not returned."""
    _log.warning("%s/%d: messages are left out: %s", *wanted.key, error)
    units = wanted.units
    offsets = units["physical_offset"][run.rows].astype(np.int64)
    ends = offsets + units["size"][run.rows]
    found: list[_Found] = []
    kept = np.flatnonzero(~find_overlaps([error], offsets, ends + layout.CODA_SIZE))
    apart = np.diff(kept) > 1
    apart |= find_overlaps([error], ends[kept[:-1]], offsets[kept[1:]])
    for part in np.split(kept, np.flatnonzero(apart) + 1) if len(kept) else []:
        piece = _Run(run.rows[part], int(offsets[part[0]]), int(ends[part[-1]]))
        found += yield from _read_run(wanted, piece)
    return found


def _is_own(
    key: QueueKey,
    queue_offsets: Longs,
    messages: list[StoredMessage],
    buffer: memoryview,
    positions: Longs,
) -> npt.NDArray[np.bool_]:
    """Return a mask of the records whose queue id and queue offset match their unit. `positions`:
    positions in the units. If a unit points to a coda, the record begins 16 bytes later."""
    if not len(messages):
        return np.zeros(0, dtype=np.bool_)
    own: npt.NDArray[np.bool_] = (
        view_unaligned(buffer, ">i8")[positions + layout.QUEUE_OFFSET_POSITION] == queue_offsets
    ) & (view_unaligned(buffer, ">i4")[positions + layout.QUEUE_ID_POSITION] == key.queue_id)
    if own.all():
        return own
    return np.array(
        [
            message.queue_offset == offset and message.queue_id == key.queue_id
            for message, offset in zip(messages, queue_offsets.tolist(), strict=True)
        ],
        dtype=np.bool_,
    )


def _keep(found: _Found, is_good: npt.ArrayLike) -> _Found:
    good = np.asarray(is_good, dtype=np.bool_)
    if good.all():
        return found
    messages = [message for message, ok in zip(found.messages, good.tolist(), strict=True) if ok]
    return _Found(messages, found.rows[good], found.sizes[good], found.buffer_bytes)


def _has_good_body(message: StoredMessage) -> bool:
    try:
        message.check_body()
    except Corrupt:
        return False
    return True


def _block(
    file: FlatMessageFile, key: QueueKey, start: int, end: int, found: list[_Found]
) -> Block:
    if len(found) == 1:
        messages, rows, sizes, buffer_bytes = found[0]
    else:
        rows = np.concatenate([part.rows for part in found] or [np.zeros(0, np.int64)])
        order = np.argsort(rows)
        unordered = [message for part in found for message in part.messages]
        messages = [unordered[index] for index in order.tolist()]
        sizes = np.concatenate([part.sizes for part in found] or [rows])[order]
        rows = rows[order]
        buffer_bytes = sum(part.buffer_bytes for part in found)
    is_dense = len(messages) == end - start
    offsets: Sequence[int] = range(start, end) if is_dense else (rows + start).tolist()
    return Block(
        file,
        key,
        start,
        end,
        messages,
        offsets,
        np.cumsum(sizes).tolist(),
        buffer_bytes,
        bad_count=end - start - len(messages),
    )
