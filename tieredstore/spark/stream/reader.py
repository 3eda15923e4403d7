"""Streaming reads: micro-batches up to what is committed, each message once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tieredstore.errors import Invalid
from tieredstore.scan.plan import ScanRange, plan
from tieredstore.spark.offsets import (
    LATEST,
    Position,
    QueueKey,
    begins_of,
    from_json,
    show_queue,
    to_json,
)
from tieredstore.spark.options import BATCH_ONLY, STREAM_ONLY, Bound, SourceOptions, refuse
from tieredstore.spark.partitions import TieredPartition, partitions_of
from tieredstore.spark.reading import PartitionReader, data_loss, warn_of_loss
from tieredstore.spark.schema import Shape
from tieredstore.spark.selection import check_named, resolve_bound, select_queues
from tieredstore.spark.stream.admission import admit_one, shares
from tieredstore.spark.stream.view import QueueView, TierView

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_ADMISSION_CONTROL = True
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadMaxBytes,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        HAS_ADMISSION_CONTROL = True
    except ImportError:  # Spark 4.1 takes whatever there is into one batch
        SupportsTriggerAvailableNow = object
        HAS_ADMISSION_CONTROL = False

_log = logging.getLogger(__name__)
_LATEST = Bound(LATEST, {})


@dataclass(slots=True)
class _Backlog:
    """Messages [start, end) of a queue that a batch may take."""

    view: QueueView
    start: int
    end: int


class TieredStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one process of the driver for as long as the query; a copy of it without a
    connection reads in the executors."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        """Raises Invalid for options that a stream does not take."""
        refuse(options, BATCH_ONLY, "a stream has no end")
        if not HAS_ADMISSION_CONTROL:
            refuse(
                options,
                STREAM_ONLY,
                "needs Spark 4.2: older ones would end an AvailableNow query after one such batch",
            )
        self._options = options
        self._reader = PartitionReader(
            options.tier(),
            shape,
            options.read,
            options.fail_on_data_loss,
            options.skip_corrupt,
            options.corrupt_report_path,
        )
        self._view: TierView | None = None
        self._target: dict[QueueKey, int] | None = None

    # What Spark asks, in a process of the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query begins that has no checkpoint. Raises Invalid, Unavailable."""
        bound = self._options.starting or _LATEST
        views = self._look(strict=True)
        check_named(bound, "startingOffsets", [view.queue for view in views.values()])
        return to_json({key: self._begin(key, view, bound) for key, view in views.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note what is committed now: that is what the query reads."""
        self._target = {key: view.end for key, view in self._look().items()}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return what is committed, for the progress report."""
        views = self._tier().last_seen
        return to_json({key: Position(view.end) for key, view in views.items()})

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next batch. Without `start` (Spark 4.1): of all that is committed.
        Raises Invalid for lost data and for a topic that was made again, Unavailable."""
        positions = from_json(start or {})
        views = self._look()
        backlogs: dict[QueueKey, _Backlog] = {}
        for key, view in views.items():
            end = view.end if self._target is None else min(view.end, self._target.get(key, -1))
            position = positions.get(key)
            first = view.least if position is None else self._check_start(key, view, position)
            if position is not None or end > first:
                backlogs[key] = _Backlog(view, first, max(first, end))
        ends = self._admit_messages(backlogs, limit)
        found = dict(positions)  # a queue that is gone keeps its place
        for key, end in ends.items():
            if key not in found or found[key].offset != end:
                found[key] = Position(end, backlogs[key].view.incarnation(end))
        new = {key: one.start for key, one in backlogs.items() if key not in positions}
        return to_json(found, new)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the batch [start, end), which Spark may ask for again after a restart. Raises as
        `latestOffset` does."""
        begin, finish = from_json(start), from_json(end)
        new = {key: Position(first) for key, first in begins_of(end).items()}
        begin = {**new, **begin}
        views = self._tier().last_seen
        if any(key not in views or views[key].end < one.offset for key, one in finish.items()):
            views = self._look(known={key: one.offset for key, one in begin.items()})
        ranges = [
            scan_range
            for key, position in finish.items()
            for scan_range in self._ranges(key, views.get(key), begin.get(key), position)
        ]
        found: list[InputPartition] = []
        found += partitions_of(
            ranges,
            partition_bytes=self._options.max_partition_bytes,
            min_partitions=self._options.min_partitions,
        )
        return found

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: nothing is kept outside of Spark's checkpoint."""

    def stop(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None

    # What executors do

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition. Raises Corrupt, Invalid for lost data, Unavailable."""
        assert isinstance(partition, TieredPartition)
        yield from self._reader.batches(partition)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_view": None}

    # Steps

    def _tier(self) -> TierView:
        if self._view is None:
            self._view = TierView(self._reader.location, check_bodies=self._options.read.body_crcs)
        return self._view

    def _look(
        self, *, strict: bool = False, known: dict[QueueKey, int] | None = None
    ) -> dict[QueueKey, QueueView]:
        tier = self._tier()
        catalogue = tier.list_tier()
        return tier.look(
            catalogue, select_queues(self._options, catalogue, strict=strict), known or {}
        )

    def _begin(self, key: QueueKey, view: QueueView, bound: Bound) -> Position:
        def out_of_range(wanted: int, least: int, most: int) -> int:
            if self._options.fail_on_data_loss:
                raise Invalid(
                    f"startingOffsets: {show_queue(key)}: offset {wanted} is out of range: the "
                    f"queue "
                    f"has [{least}, {most}); failOnDataLoss=false takes what is there"
                )
            _log.warning("failOnDataLoss=false: %s: no offset %d", show_queue(key), wanted)
            return least if wanted < least else most

        offset = min(resolve_bound(view.provider, view.queue, bound, out_of_range), view.end)
        return Position(offset, view.incarnation(offset))

    def _check_start(self, key: QueueKey, view: QueueView, position: Position) -> int:
        """Where to go on in a queue: at the position, or, of what is left, at its first message."""
        now = view.incarnation_like(position.incarnation)
        if position.incarnation.contradicts(now):
            raise Invalid(
                f"{show_queue(key)}: the topic was made again since offset {position.offset} was "
                f"taken: "
                f"then {position.incarnation}; now {now}. Begin anew with another checkpoint",
                topic=key[0],
                queue_id=key[2],
                offset=position.offset,
            )
        if view.end < position.offset:
            raise Invalid(
                f"{show_queue(key)}: the topic was made again, or lost its end: the stream is at "
                f"offset "
                f"{position.offset} ({position.incarnation}), the queue is committed up to offset "
                f"{view.end} ({view.incarnation(view.end)})",
                topic=key[0],
                queue_id=key[2],
                offset=position.offset,
            )
        if position.offset >= view.least:
            return position.offset
        if self._options.fail_on_data_loss:
            raise data_loss(view.queue, position.offset, view.least, "before they were read")
        return view.least

    def _admit_messages(
        self, backlogs: dict[QueueKey, _Backlog], limit: ReadLimit | None
    ) -> dict[QueueKey, int]:
        """How far each queue goes in this batch."""
        ends = {key: one.end for key, one in backlogs.items()}
        if limit is None or isinstance(limit, ReadAllAvailable):
            return ends
        waiting = {key: one for key, one in backlogs.items() if one.end > one.start}
        if self._options.max_offsets_per_trigger is not None:
            counts = {key: one.end - one.start for key, one in waiting.items()}
            for key, count in shares(counts, self._options.max_offsets_per_trigger).items():
                ends[key] = waiting[key].start + count
        if self._options.max_bytes_per_trigger is not None:
            sizes = {key: one.view.log_bytes(one.start, ends[key]) for key, one in waiting.items()}
            for key, size in shares(sizes, self._options.max_bytes_per_trigger).items():
                if size < sizes[key]:
                    ends[key] = waiting[key].view.end_within(waiting[key].start, ends[key], size)
        admit_one(ends, {key: one.start for key, one in waiting.items()}, list(waiting))
        return ends

    def _ranges(
        self, key: QueueKey, view: QueueView | None, begin: Position | None, end: Position
    ) -> Iterator[ScanRange]:
        """Ranges of [begin, end) of one queue; one that has no begin is new, and starts with its
        first message."""
        if begin is not None and begin.offset >= end.offset:
            return
        if view is None:
            if begin is not None or end.incarnation.message is not None:
                self._report_gone(key, 0 if begin is None else begin.offset, end.offset)
            return
        self._check_end(key, view, end)
        low = view.least if begin is None else self._check_start(key, view, begin)
        if begin is not None and low > begin.offset:
            warn_of_loss(view.queue, begin.offset, min(low, end.offset))
        yield from plan(
            view.provider,
            [view.queue],
            from_offset=low,
            until_offset=end.offset,
            range_bytes=self._options.max_partition_bytes,
            narrow=True,
        )

    def _check_end(self, key: QueueKey, view: QueueView, end: Position) -> None:
        """A batch that is planned again must find the queue that it was planned from."""
        if end.offset >= view.least:
            self._check_start(key, view, end)

    def _report_gone(self, key: QueueKey, first: int, until: int) -> None:
        message = f"{show_queue(key)}: wanted offset {first}, but the queue is gone from the tier"
        if self._options.fail_on_data_loss:
            raise Invalid(f"{message}; failOnDataLoss=false goes on without it", topic=key[0])
        _log.warning("failOnDataLoss=false: %s: %d messages were not read", message, until - first)
