"""Reads a block of messages from a queue in the tier: consume queue units, then what they name.

One bad unit or record costs that message only: every message keeps the queue offset of its own
unit, and what cannot be used is left out and counted (`docs/formats/consume-queue.md`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.block_checksums import BlocksDamaged, find_overlaps
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.message.buffers import view_unaligned
from tieredstore.message.columns.split import split_messages
from tieredstore.message.consume_queue import UNKNOWN_TAGS_CODE
from tieredstore.message.hashes import tags_code
from tieredstore.message.layout import CODA_SIZE, QUEUE_ID_POSITION, QUEUE_OFFSET_POSITION
from tieredstore.tier.fetch.read_ahead import MESSAGE_OVERHEAD_BYTES, Block
from tieredstore.tier.fetch.readable_queue import ReadableQueue
from tieredstore.tier.fetch.small_block import SMALL_BLOCK_MESSAGES, read_small_block
from tieredstore.tier.joined_reading import join_readings

if TYPE_CHECKING:
    from tieredstore.message.record import StoredMessage
    from tieredstore.tier.reading import Reading

GAP_BYTES = 1 << 20
"""Bytes between two messages that are read along rather than read around: an upload that was
repeated after a crash leaves its first copy between them."""

_NO_LIMIT = 2**63 - 1
_log = logging.getLogger(__name__)
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Run:
    """Units (rows) whose records lie close together in [start, end) of the commit log."""

    rows: Longs
    start: int
    end: int


class _Found(NamedTuple):
    """Messages of some rows, the rows, their sizes, and the size of the bytes that they are views
    of."""

    messages: list[StoredMessage]
    rows: Longs
    sizes: Longs
    buffer_bytes: int


def read_block(
    file: ReadableQueue,
    start: int,
    count: int,
    limit_bytes: int,
    *,
    room_bytes: int = _NO_LIMIT,
    check_bodies: bool = False,
) -> Reading[Block]:
    """Read the messages with queue offsets from `start` on, at most `count` of them: their units,
    then what these name, as `read_named` does."""
    units = yield from file.read_units(start, count)
    block = yield from read_named(
        file, start, units, limit_bytes, room_bytes=room_bytes, check_bodies=check_bodies
    )
    return block


def read_named(
    file: ReadableQueue,
    start: int,
    units: npt.NDArray[np.void],
    limit_bytes: int,
    *,
    room_bytes: int = _NO_LIMIT,
    check_bodies: bool = False,
) -> Reading[Block]:
    """Read the messages of `units`, the first of which is of queue offset `start`.

    Ends before the message with which they would span more than `limit_bytes` of commit log, or
    the block weigh more than `room_bytes`, but holds one at least. The block is empty where there
    is a hole; it then reaches to its end. check_bodies: leave out messages whose body does not
    have its CRC. Raises Unavailable, and Corrupt when the bytes of a whole range are missing.
    """
    key = QueueKey(file.topic, file.queue_id)
    if not len(units):
        return _hole(file, key, start)
    if len(units) <= SMALL_BLOCK_MESSAGES and not check_bodies:
        block = yield from read_small_block(file, key, start, units, limit_bytes, room_bytes)
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
    found = yield from _read_runs(file, key, start, units, runs)
    if check_bodies:
        found = [_drop_bad_bodies(part) for part in found]
    return _block(file, key, start, start + count, found)


def find_fitting(units: npt.NDArray[np.void], limit_bytes: int, room_bytes: int) -> tuple[int, int]:
    """Find how many units a block takes, one at least, and what it will weigh, where the records
    follow one another."""
    spans = units["physical_offset"].astype(np.int64) + units["size"] - units["physical_offset"][0]
    weights = spans + MESSAGE_OVERHEAD_BYTES * np.arange(2, len(spans) + 2)
    count = min(_count_fitting(spans, limit_bytes), _count_fitting(weights, room_bytes))
    return count, int(weights[count - 1])


def count_reaching(units: npt.NDArray[np.void], enough_bytes: int, limit_bytes: int) -> int:
    """Count the units up to and with the one whose message reaches so many bytes; all of them
    where none does. Sizes that no read brings, since they pass `limit_bytes`, do not count."""
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


def _hole(file: ReadableQueue, key: QueueKey, start: int) -> Block:
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


def _are_in_order(file: ReadableQueue, offsets: Longs, sizes: Longs, ends: Longs) -> bool:
    """Whether the records follow one another inside the commit log, as good ones do."""
    return bool(
        offsets[0] >= file.commit_log_min_offset
        and offsets.max() <= file.commit_log_commit_offset
        and ends[-1] <= file.commit_log_commit_offset
        and (sizes > 0).all()
        and (offsets[1:] >= ends[:-1]).all()
        and (offsets[1:] - ends[:-1] <= GAP_BYTES).all()
    )


def _runs(
    file: ReadableQueue, offsets: Longs, sizes: Longs, limit_bytes: int
) -> tuple[list[_Run], int]:
    """Runs of the units that lead into the commit log, and how many units they and the unusable
    ones between them are."""
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


def _read_runs(
    file: ReadableQueue,
    key: QueueKey,
    start: int,
    units: npt.NDArray[np.void],
    runs: Sequence[_Run],
) -> Reading[list[_Found]]:
    outcomes = yield from join_readings([_read_run(file, key, start, units, run) for run in runs])
    found: list[_Found] = []
    for outcome in outcomes:
        if isinstance(outcome, TieredStoreError):
            # The only run there is, or a backend that is away: there is no neighbour to save.
            if len(runs) == 1 or isinstance(outcome, Unavailable):
                raise outcome
        else:
            found.append(outcome)
    return found


def _read_run(
    file: ReadableQueue, key: QueueKey, start: int, units: npt.NDArray[np.void], run: _Run
) -> Reading[_Found]:
    length = run.end - run.start
    try:
        buffer = yield from file.read_commit_log(run.start, length)
    except BlocksDamaged as error:
        return (yield from _read_around(file, key, start, units, run, error))
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
        # A unit that points at a coda: its record ends 16 bytes later than the unit says.
        try:
            buffer = yield from file.read_commit_log(run.start, length + CODA_SIZE)
        except BlocksDamaged as error:
            return (yield from _read_around(file, key, start, units, run, error))
        split = split_messages(chosen, buffer, buffer_offset=run.start)
    rows, messages, named = run.rows[split.indexes], split.messages, chosen[split.indexes]
    sizes = named["size"].astype(np.int64)
    own = _is_own(key, start + rows, messages, buffer, named["physical_offset"] - run.start)
    if not own.all():
        messages = [message for message, ok in zip(messages, own.tolist(), strict=True) if ok]
        rows, sizes = rows[own], sizes[own]
    if (named["tags_code"] == UNKNOWN_TAGS_CODE).any():
        for message in messages:
            message.tags_code = tags_code(message.tags)
    return _Found(messages, rows, sizes, len(buffer))


def _read_around(
    file: ReadableQueue,
    key: QueueKey,
    start: int,
    units: npt.NDArray[np.void],
    run: _Run,
    error: BlocksDamaged,
) -> Reading[_Found]:
    """The messages of a run that lie outside of damaged blocks. Nobody can tell which of the others
    are as they were."""
    _log.warning("%s/%d: messages are left out: %s", *key, error)
    offsets = units["physical_offset"][run.rows].astype(np.int64)
    ends = offsets + units["size"][run.rows]
    found = _Found([], np.zeros(0, np.int64), np.zeros(0, np.int64), 0)
    kept = np.flatnonzero(~find_overlaps([error], offsets, ends + CODA_SIZE))
    apart = np.diff(kept) > 1
    apart |= find_overlaps([error], ends[kept[:-1]], offsets[kept[1:]])
    for part in np.split(kept, np.flatnonzero(apart) + 1) if len(kept) else []:
        piece = _Run(run.rows[part], int(offsets[part[0]]), int(ends[part[-1]]))
        found = _join_found(found, (yield from _read_run(file, key, start, units, piece)))
    return found


def _join_found(one: _Found, other: _Found) -> _Found:
    return _Found(
        one.messages + other.messages,
        np.concatenate([one.rows, other.rows]),
        np.concatenate([one.sizes, other.sizes]),
        one.buffer_bytes + other.buffer_bytes,
    )


def _is_own(
    key: QueueKey,
    queue_offsets: Longs,
    messages: list[StoredMessage],
    buffer: memoryview,
    positions: Longs,
) -> npt.NDArray[np.bool_]:
    """Whether each record says that it is the message of its unit: queue id and queue offset.

    positions: where the units point; a record behind a coda is 16 bytes further.
    """
    if not len(messages):
        return np.zeros(0, dtype=np.bool_)
    own: npt.NDArray[np.bool_] = (
        view_unaligned(buffer, ">i8")[positions + QUEUE_OFFSET_POSITION] == queue_offsets
    ) & (view_unaligned(buffer, ">i4")[positions + QUEUE_ID_POSITION] == key.queue_id)
    if own.all():
        return own
    return np.array(
        [
            message.queue_offset == offset and message.queue_id == key.queue_id
            for message, offset in zip(messages, queue_offsets.tolist(), strict=True)
        ],
        dtype=np.bool_,
    )


def _drop_bad_bodies(found: _Found) -> _Found:
    return _keep(found, [_has_good_body(message) for message in found.messages])


def _keep(found: _Found, is_good: list[bool]) -> _Found:
    good = np.array(is_good, dtype=np.bool_)
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


def _block(file: ReadableQueue, key: QueueKey, start: int, end: int, found: list[_Found]) -> Block:
    if len(found) == 1:
        messages, rows, sizes, buffer_bytes = found[0]
    else:
        triples = sorted(
            (
                triple
                for part in found
                for triple in zip(
                    part.rows.tolist(), part.messages, part.sizes.tolist(), strict=True
                )
            ),
            key=lambda triple: triple[0],
        )
        messages = [message for _, message, _ in triples]
        rows = np.array([row for row, _, _ in triples], dtype=np.int64)
        sizes = np.array([size for _, _, size in triples], dtype=np.int64)
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
