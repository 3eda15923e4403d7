"""Streaming reads: micro-batches of committed messages. Each message is read once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import Corrupt, Expired, Invalid
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
from tieredstore.scan.plan import ScanBounds, ScanRange, needs_reads, plan_queue
from tieredstore.spark.offsets import EARLIEST, LATEST, QueueKey, show_queue
from tieredstore.spark.options import BATCH_ONLY, STREAM_ONLY, Bound, SourceOptions, refuse
from tieredstore.spark.partitions import TieredPartition, partitions_of
from tieredstore.spark.reading import PartitionReader, data_loss, warn_of_loss
from tieredstore.spark.schema import Shape
from tieredstore.spark.selection import check_named, chooses, resolve_bound, select_queues
from tieredstore.spark.stream.admission import Backlog, admit_messages
from tieredstore.spark.stream.checkpoint import Position, StreamOffset
from tieredstore.spark.stream.view import QueueView, TierView

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_ADMISSION_CONTROL = True
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadMaxBytes,
            ReadMaxRows,
            ReadMinRows,
            SupportsTriggerAvailableNow,
        )

        HAS_ADMISSION_CONTROL = True
    except ImportError:  # Spark 4.1 takes the whole backlog into one batch
        SupportsTriggerAvailableNow = object
        HAS_ADMISSION_CONTROL = False

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger(__name__)
_LATEST = Bound(LATEST, {})
_REPETITIONS = 2
"""Maximum number of times that a step of the reader is repeated because segments were deleted
during the step."""


class TieredStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader. It plans in a process of the driver. Executors read with copies of it, which
    have no connection."""

    def __init__(
        self, options: SourceOptions, shape: Shape, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Store the options. Raises Invalid for options that streams do not support."""
        refuse(options, BATCH_ONLY, "a stream has no end")
        if not HAS_ADMISSION_CONTROL:
            text = (
                "needs Spark 4.2: older ones would end an AvailableNow query after one such batch"
            )
            refuse(options, STREAM_ONLY, text)
        self._options = options
        self._clock = clock
        self._reader = PartitionReader.of(options, shape)
        self._view: TierView | None = None
        self._target: dict[QueueKey, int] | None = None
        self._seen_ends: dict[QueueKey, int] = {}
        self._told_gone: set[QueueKey] = set()
        self._batch_ms: int | None = None

    # Calls of Spark, in a process of the driver

    def initialOffset(self) -> dict[str, object]:  # noqa: N802
        """Return the start of a query without a checkpoint. Raises Invalid, Unavailable."""
        return self._with_present_segments(self._find_initial)

    def _find_initial(self) -> dict[str, object]:
        bound = self._options.starting or _LATEST
        # Spark asks twice
        views = self._look(strict=True, hears_first=bound.default == EARLIEST)
        check_named(bound, "startingOffsets", [view.queue for view in views.values()])
        begins = self._map_ahead(
            lambda one: self._begin(*one, bound),
            list(views.items()),
            waits=lambda one: bound.default != EARLIEST or not one[1].is_known_at(one[1].least),
        )
        return StreamOffset(dict(zip(views, begins, strict=True))).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the current committed end, at which the query stops."""
        views = self._with_present_segments(lambda: self._look(now=True))
        self._target = {key: view.end for key, view in views.items()}

    def reportLatestOffset(self) -> dict[str, object]:  # noqa: N802
        """Return the end that was committed at the last listing, for the progress report."""
        views = self._tier().last_seen
        return StreamOffset({key: Position(view.end) for key, view in views.items()}).to_json()

    def latestOffset(  # noqa: N802
        self, start: dict[str, object] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, object]:
        """Return the end of the next batch, or `start` if no messages are unread. Without `start`
        (Spark 4.1), return the committed end. Raises Invalid for lost data and for a recreated
        topic, Unavailable."""
        return self._with_present_segments(lambda: self._find_latest(start, limit))

    def _find_latest(
        self, start: dict[str, object] | None, limit: ReadLimit | None
    ) -> dict[str, object]:
        begin = StreamOffset.from_json(start or {})
        views = self._look() if self._target is None else self._tier().last_seen
        self._check_gone(begin.positions, views)
        backlogs = self._backlogs(begin.positions, views)
        takes_all = limit is None or isinstance(limit, ReadAllAvailable)
        if start is not None and not takes_all and self._waits_for_more(backlogs):
            return start
        ends, place = admit_messages(
            backlogs,
            begin.place,
            most_messages=None if takes_all else self._options.max_offsets_per_trigger,
            most_bytes=None if takes_all else self._options.max_bytes_per_trigger,
        )
        found = dict(begin.positions)  # a deleted queue keeps its position
        moved = {
            key: end for key, end in ends.items() if key not in found or found[key].offset != end
        }
        if start is not None and not moved:
            return start
        views = {key: backlogs[key].view for key in moved}
        known_by = self._map_ahead(
            lambda key: views[key].incarnation(moved[key]),
            list(moved),
            waits=lambda key: not views[key].is_known_at(moved[key]),
        )
        for (key, end), incarnation in zip(moved.items(), known_by, strict=True):
            found[key] = Position(end, incarnation)
        new = {key: one.start for key, one in backlogs.items() if key not in begin.positions}
        self._batch_ms = self._clock.monotonic_ms()
        return StreamOffset(found, new, place).to_json()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """Return the partitions of the batch [start, end). Spark may repeat the call after a
        restart. Raises the errors of `latestOffset`."""
        return self._with_present_segments(lambda: self._plan(start, end))

    def _plan(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        finish = StreamOffset.from_json(end)
        begin = {key: Position(first) for key, first in finish.begins.items()}
        begin.update(StreamOffset.from_json(start).positions)
        wanted = {
            key: position
            for key, position in finish.positions.items()
            if key not in begin or begin[key].offset < position.offset
        }
        views = self._tier().last_seen
        if any(key not in views or views[key].end < one.offset for key, one in wanted.items()):
            known = {key: one.offset for key, one in begin.items()}
            views = self._look(known=known, now=True)

        def plan_one(key: QueueKey) -> list[ScanRange]:
            return list(self._ranges(key, views.get(key), begin.get(key), wanted[key]))

        def waits(key: QueueKey) -> bool:
            view, most = views.get(key), self._options.max_partition_bytes
            if view is None or not view.has_heard(wanted[key].incarnation):
                return True
            return needs_reads(view.queue, range_bytes=most, is_part=True, has_least=True)

        planned = self._map_ahead(plan_one, list(wanted), waits=waits)
        ranges = list(chain.from_iterable(planned))
        return [
            *partitions_of(
                ranges,
                partition_bytes=self._options.max_partition_bytes,
                min_partitions=self._options.min_partitions,
                max_messages=self._options.max_records_per_partition,
            )
        ]

    def commit(self, end: dict[str, object]) -> None:
        """No-op: Spark's checkpoint has the whole state."""

    def stop(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None

    # Calls of executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition. Raises Corrupt, Invalid for lost data, Unavailable."""
        assert isinstance(partition, TieredPartition)
        yield from self._reader.batches(partition)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_view": None}

    # Steps

    def _with_present_segments(self, step: Callable[[], T]) -> T:
        """Run a step of the reader. If it needed deleted segments, list the tier again and repeat
        the step, which then reports the loss. Raises the errors of the step."""
        for _ in range(_REPETITIONS):
            try:
                return step()
            except (Expired, Corrupt):
                with suppress(Expired, Corrupt):
                    self._look(now=True)
        return step()

    def _map_ahead(
        self, function: Callable[[T], R], items: Sequence[T], *, waits: Callable[[T], bool]
    ) -> Iterator[R]:
        """Yield the result of `function` for each item. Over a network, several items are processed
        at the same time."""
        return map_ahead(self._tier().provider, function, items, waits=waits)

    def _tier(self) -> TierView:
        if self._view is None:
            self._view = TierView(
                self._reader.location,
                check_bodies=self._options.read.body_crcs,
                topics=self._options.named_topics,
                interval_ms=self._options.list_interval_ms,
                clock=self._clock,
            )
        return self._view

    def _look(
        self,
        *,
        strict: bool = False,
        known: dict[QueueKey, int] | None = None,
        now: bool = False,
        hears_first: bool = False,
    ) -> dict[QueueKey, QueueView]:
        def select(catalogue: TierCatalogue) -> list[QueueFiles]:
            return select_queues(self._options, catalogue, strict=strict)

        found = self._tier().look(select, known=known, now=now, hears_first=hears_first)
        self._seen_ends.update((key, view.end) for key, view in found.items())
        return found

    def _begin(self, key: QueueKey, view: QueueView, bound: Bound) -> Position:
        def out_of_range(wanted: int, least: int, most: int) -> int:
            if self._options.fail_on_data_loss:
                raise Invalid(
                    f"startingOffsets: {show_queue(key)}: offset {wanted} is out of range: the "
                    f"queue "
                    f"has [{least}, {most}). failOnDataLoss=false reads the existing ones"
                )
            _log.warning("failOnDataLoss=false: %s: no offset %d", show_queue(key), wanted)
            return least if wanted < least else most

        with view.open() as reader:
            offset = resolve_bound(
                reader, bound, out_of_range, search_times=self._options.search_times
            )
        offset = min(offset, view.end)
        return Position(offset, view.incarnation(offset))

    def _check_start(self, key: QueueKey, view: QueueView, position: Position) -> int:
        """Return the offset at which to continue: that of the position, or of the first existing
        message after it. Raises Invalid if the queue was recreated."""
        now = view.incarnation_like(position.incarnation)
        if position.incarnation.contradicts(now):
            text = (
                f"{show_queue(key)}: the topic was made again since offset {position.offset} was "
                f"taken: "
                f"then {position.incarnation}; now {now}. Begin anew with another checkpoint"
            )
            raise Invalid(text, topic=key[0], queue_id=key[2], offset=position.offset)
        if view.end < position.offset:
            text = (
                f"{show_queue(key)}: the topic was made again, or lost its end: the stream is at "
                f"offset "
                f"{position.offset} ({position.incarnation}), the queue is committed up to offset "
                f"{view.end} ({view.incarnation(view.end)})"
            )
            raise Invalid(text, topic=key[0], queue_id=key[2], offset=position.offset)
        if position.offset >= view.least:
            return position.offset
        if self._options.fail_on_data_loss:
            raise data_loss(view.queue, position.offset, view.least, "before they were read")
        return view.least

    def _backlogs(
        self, positions: Mapping[QueueKey, Position], views: Mapping[QueueKey, QueueView]
    ) -> dict[QueueKey, Backlog]:
        """Return the unread messages of each queue, up to the target of AvailableNow."""
        found: dict[QueueKey, Backlog] = {}
        self._listen(positions, views)
        for key, view in views.items():
            end = view.end if self._target is None else min(view.end, self._target.get(key, -1))
            position = positions.get(key)
            first = view.least if position is None else self._check_start(key, view, position)
            if end > first:
                first = min(view.first_at(first), end)  # a hole is passed at once
            if position is not None or end > first:
                found[key] = Backlog(view, first, max(first, end))
        return found

    def _listen(
        self, positions: Mapping[QueueKey, Position], views: Mapping[QueueKey, QueueView]
    ) -> None:
        """Read the messages that identify the queues, concurrently for all queues."""
        waiting = [
            (view, positions[key].incarnation)
            for key, view in views.items()
            if key in positions and not view.has_heard(positions[key].incarnation)
        ]
        provider = self._tier().provider
        for _ in map_ahead(provider, lambda one: one[0].incarnation_like(one[1]), waiting):
            pass

    def _waits_for_more(self, backlogs: Mapping[QueueKey, Backlog]) -> bool:
        """Return whether a small batch may wait for more messages."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None or self._batch_ms is None:
            return False
        waited_ms = self._clock.monotonic_ms() - self._batch_ms
        if waited_ms >= self._options.max_trigger_delay_ms:
            return False
        return 0 < sum(one.count for one in backlogs.values()) < least

    def _check_gone(
        self, positions: Mapping[QueueKey, Position], views: Mapping[QueueKey, QueueView]
    ) -> None:
        """Fail or warn if unread messages were deleted with their queue or topic. A queue keeps its
        position if it was read to its end, because its messages may have expired. It also does if
        its topic has other queues or is still in the metadata. After a restart, the reader cannot
        know whether a deleted topic had unread messages."""
        catalogue = self._tier().catalogue
        if catalogue is None:
            return
        there = set(catalogue.topic_names()) | set(catalogue.topics or ())
        for key in [key for key in positions if key not in views]:
            if key in self._told_gone or not chooses(self._options, key):
                continue
            seen, offset = self._seen_ends.get(key), positions[key].offset
            if seen is not None and seen > offset:
                self._report_gone(key, offset, seen)
            elif seen is None and key[0] not in there:
                self._report_gone(key, offset, None)
            else:
                continue
            self._told_gone.add(key)

    def _ranges(
        self, key: QueueKey, view: QueueView | None, begin: Position | None, end: Position
    ) -> Iterator[ScanRange]:
        """Yield ranges of [begin, end) of one queue. `begin`: None for a new queue."""
        if begin is not None and begin.offset >= end.offset:
            return
        if view is None:
            if begin is not None or end.incarnation.message is not None:
                self._report_gone(key, 0 if begin is None else begin.offset, end.offset)
            return
        if end.offset >= view.least:  # A replanned batch needs the queue that it was planned from.
            self._check_start(key, view, end)
        low = view.least if begin is None else self._check_start(key, view, begin)
        if begin is not None and low > begin.offset:
            warn_of_loss(view.queue, begin.offset, min(low, end.offset))
        with view.open() as reader:
            most = self._options.max_partition_bytes
            bounds = ScanBounds(low, end.offset, range_bytes=most, narrow=True)
            witness = view.witness_of(end.incarnation)
            for one in plan_queue(reader, bounds):
                yield replace(one, witness=witness or one.witness)

    def _report_gone(self, key: QueueKey, first: int, until: int | None) -> None:
        """Report lost messages. `until`: end of the lost messages, or None if unknown."""
        message = f"{show_queue(key)}: wanted offset {first}, but the queue is gone from the tier"
        count = "messages behind it may not have been read"
        if until is not None:
            count = f"{until - first} messages were not read"
        if self._options.fail_on_data_loss:
            raise Invalid(
                f"{message}: {count}. failOnDataLoss=false continues without it", topic=key[0]
            )
        _log.warning("failOnDataLoss=false: %s: %s", message, count)
