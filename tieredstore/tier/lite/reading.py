"""Reads of light queues from the tier: first the units in the runs, then the messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import numpy as np

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetRequest
from tieredstore.errors import Corrupt, TieredStoreError
from tieredstore.message.hashes import java_string_hash
from tieredstore.message.lite import LITE_QUEUE_ID, find_light_offset, parse_lite_topic
from tieredstore.message.lite_runs import Table, join_units
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.tier.fetch.read_ahead import Block, ReadAheadCache, Taken
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.lite.runs import FoundUnits
from tieredstore.tier.lite.service import LiteService
from tieredstore.tier.reading import Reading, Steps, Wait, join_readings, run, run_async

FETCHED_UNITS: Final = 512
"""Maximum number of messages that one fetch reads."""
FETCHED_BYTES: Final = 4 << 20
"""Total size of messages at which a fetch ends, bytes."""
GAP_BYTES: Final = 128 << 10
"""Maximum number of bytes between two messages that are read together."""
TOGETHER_BYTES: Final = 1 << 20
"""Maximum number of bytes of one read, unless a message is larger."""
READ_THREADS: Final = 64
"""Number of threads that read light queues. A fetch may have one read for each message."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Range:
    """Bytes [begin, end) of the commit log of a parent topic's queue that are read together.
    `rows`: indices of the units whose messages are in the range."""

    file: FlatMessageFile
    begin: int
    end: int
    rows: list[int]


class LiteReader:
    """Reads of light queues from the tier. Thread-safe. `executor`: runs the reads of a fetch, with
    up to READ_THREADS threads. `cache`: keeps fetched messages for the next get."""

    def __init__(
        self,
        service: LiteService,
        flat_files: FlatFileStore,
        cache: ReadAheadCache,
        executor: Executor,
    ) -> None:
        self._service = service
        self._flat_files = flat_files
        self._cache = cache
        self._executor = executor

    def take(self, request: GetRequest) -> Steps[Taken | None]:
        """Return messages of a light queue, starting at the requested offset. If the tier lacks the
        message at this offset, the result has no message, and its next offset is the first one in
        the tier. Returns None if the tier has no message at or after the offset. Raises
        Unavailable, Corrupt."""
        queue, offset = request.topic, request.offset
        block = self._cache.find(request.key, offset, self._service)
        if block is None:
            found = self._service.find(queue)
            block = None
            if any(one.end > offset for one in found):
                block = yield from self._fetch(queue, offset, found)
            if block is None:
                return None
            self._cache.put(block)
        if offset < block.offsets[0]:
            return Taken((), block.offsets[0], 0)
        taken = block.take(offset, request.max_count, request.limit_bytes, request.message_filter)
        if taken.size_bytes > request.limit_bytes and len(taken.messages) > 1:
            last = taken.messages[-1]
            taken = Taken(
                taken.messages[:-1],
                block.offsets[list(block.messages).index(last)],
                taken.size_bytes - last.size,
            )
        if taken.next_offset >= block.end:
            self._cache.read_to_end(block)
        return taken

    def find_units(self, queue: str, offset: int, count: int) -> Steps[Table]:
        """Return the units of up to `count` messages in the tier, starting at `offset`. Raises
        Unavailable, Corrupt."""
        units = yield from self._read_units(queue, offset, self._service.find(queue), count)
        return units

    def drop(self, queue: str) -> None:
        """Remove fetched messages of a light queue."""
        self._cache.drop(QueueKey(queue, LITE_QUEUE_ID))

    def _do_all(self, calls: Sequence[Callable[[], T]]) -> Wait[list[T]]:
        """Return a step that runs several blocking calls concurrently and returns their results."""
        executor = self._executor

        async def later() -> list[T]:
            loop = asyncio.get_running_loop()
            return await asyncio.gather(*(loop.run_in_executor(executor, call) for call in calls))

        if len(calls) == 1:
            return Wait(lambda: [calls[0]()], later)
        return Wait(lambda: [one.result() for one in [executor.submit(c) for c in calls]], later)

    def _read_units(
        self, queue: str, offset: int, found: Sequence[FoundUnits], wanted: int = FETCHED_UNITS
    ) -> Steps[Table]:
        """Read the units of the first messages in the tier at or after `offset`, ordered by
        offset."""
        found = [one for one in found if one.end > offset]
        limits = [one.limit(offset, wanted) for one in found]
        try:
            tables: list[Table] = yield self._do_all(
                [partial(one.run.read_rows, *rows) for one, rows in zip(found, limits, strict=True)]
            )
        except TieredStoreError as error:
            self._service.note_stale(error)
            raise
        units = join_units(tables)
        # Rows of a run after those that were read are not known yet.
        ends = [
            int(table["offset"][-1]) + 1
            for one, (_, end), table in zip(found, limits, tables, strict=True)
            if end < one.row + one.size and len(table)
        ]
        begin = max(offset, self._service.find_deleted_end(queue))
        offsets = units["offset"].astype(np.int64)
        kept = (offsets >= begin) & (offsets < min(ends, default=np.iinfo(np.int64).max))
        units = units[kept]
        _, distinct = np.unique(units["offset"], return_index=True)
        units = units[distinct]
        lite = parse_lite_topic(queue)
        parent = "" if lite is None else lite.parent
        return units[[self._is_there(parent, unit) for unit in units]] if len(units) else units

    def _is_there(self, parent: str, unit: np.void) -> bool:
        file = self._flat_files.get(parent, int(unit["queue_id"]))
        if file is None or not file.is_initialised:
            return False
        begin, end = file.commit_log_min_offset, file.commit_log_commit_offset
        return begin <= int(unit["position"]) <= end - int(unit["size"])

    def _fetch(self, queue: str, offset: int, found: Sequence[FoundUnits]) -> Steps[Block | None]:
        units = yield from self._read_units(queue, offset, found)
        if not len(units):
            return None
        sizes = units["size"].astype(np.int64).cumsum()
        count = max(int(np.searchsorted(sizes, FETCHED_BYTES)), 1)
        steps = np.flatnonzero(np.diff(units["offset"].astype(np.int64)) != 1)
        units = units[: min(count, int(steps[0]) + 1 if len(steps) else count)]
        ranges = self._plan(queue, units)
        outcomes: list[memoryview | TieredStoreError] = yield Wait(
            partial(run, self._join(ranges), self._executor),
            partial(run_async, self._join(ranges), self._executor),
        )
        first = next(at for at, one in enumerate(ranges) if 0 in one.rows)
        if isinstance(outcomes[first], Corrupt) and len(ranges[first].rows) > 1:
            # Damaged bytes after the first message must not hide it.
            ranges = self._plan(queue, units[:1])
            outcomes = yield from self._join(ranges)
            units = units[:1]
        messages: dict[int, StoredMessage] = {}
        faults: dict[int, TieredStoreError] = {}
        for piece, data in zip(ranges, outcomes, strict=True):
            for row in piece.rows:
                try:
                    if isinstance(data, TieredStoreError):
                        raise data
                    messages[row] = _decode(queue, units[row], data, piece.begin)
                except TieredStoreError as error:
                    faults[row] = error
        count = min(faults, default=len(units))  # messages before the first one that failed
        if not count:
            raise faults[0]
        units = units[:count]
        whole = [messages[row] for row in range(count)]
        offsets = units["offset"].tolist()
        ends = np.cumsum([message.size for message in whole]).tolist()
        key = QueueKey(queue, LITE_QUEUE_ID)
        return Block(
            # Not from `offset` on: a later run may have messages before the first one.
            *(self._service, key, offsets[0], offsets[-1] + 1),
            *(whole, offsets, ends, ends[-1]),
        )

    def _plan(self, queue: str, units: Table) -> list[_Range]:
        """Return the commit log ranges to read for the messages of these units. Messages that are
        close together share a range."""
        lite = parse_lite_topic(queue)
        parent = "" if lite is None else lite.parent
        ranges: list[_Range] = []
        for row in np.lexsort((units["position"], units["queue_id"])).tolist():
            begin, size = int(units["position"][row]), int(units["size"][row])
            file = self._flat_files.get(parent, int(units["queue_id"][row]))
            if file is None:
                raise Corrupt(f"{queue}: its parent is gone", topic=parent)
            last = ranges[-1] if ranges else None
            if (
                last is not None
                and last.file is file
                and begin <= last.end + GAP_BYTES
                and begin + size - last.begin <= TOGETHER_BYTES
            ):
                rows = [*last.rows, row]
                ranges[-1] = _Range(file, last.begin, max(last.end, begin + size), rows)
            else:
                ranges.append(_Range(file, begin, begin + size, [row]))
        return ranges

    def _join(self, ranges: Sequence[_Range]) -> Reading[list[memoryview | TieredStoreError]]:
        readings = [one.file.read_commit_log(one.begin, one.end - one.begin) for one in ranges]
        found = yield from join_readings(readings)
        return found


def _decode(queue: str, unit: np.void, data: memoryview, begin: int) -> StoredMessage:
    """Return the message of a unit. Raises Corrupt if another message is at the position of the
    unit."""
    at = int(unit["position"]) - begin
    piece = bytes(data[at : at + int(unit["size"])])  # a copy: others read the rest
    message = decode_record(piece)
    if find_light_offset(queue, message) != int(unit["offset"]) or message.size != len(piece):
        raise Corrupt(
            f"{queue}: expected its message {int(unit['offset'])} at {int(unit['position'])} of "
            f"queue {int(unit['queue_id'])} of its parent, found another message",
            topic=queue,
            offset=int(unit["offset"]),
        )
    tags = message.tags
    return StoredMessage(piece, 0, len(piece), 0 if not tags else java_string_hash(tags))
