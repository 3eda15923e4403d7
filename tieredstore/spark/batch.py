"""Batch reads: partitions of the tier's content at planning time."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Invalid
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.ahead import map_ahead, waits_for_network
from tieredstore.scan.arrow.read import needs_records
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
from tieredstore.scan.expired import open_queue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Severity
from tieredstore.scan.plan import ScanBounds, ScanRange, needs_reads, plan_each, plan_queue
from tieredstore.scan.selection import Selection
from tieredstore.scan.tasks import plan_ranges
from tieredstore.scan.time_search.modes import SearchTimes
from tieredstore.scan.times import require_order
from tieredstore.spark.offsets import EARLIEST, LATEST
from tieredstore.spark.options import LISTED_AGAIN, STREAM_ONLY, Bound, SourceOptions
from tieredstore.spark.partitions import TieredPartition, partitions_of
from tieredstore.spark.push_down import Narrowing, least, most, narrow_by_filters
from tieredstore.spark.reading import PartitionReader, data_loss, warn_of_loss
from tieredstore.spark.schema import Shape
from tieredstore.spark.selection import (
    check_named,
    key_of,
    listing_of,
    resolve_bound,
    select_queues,
)

_log = logging.getLogger(__name__)


class TieredBatchReader(DataSourceReader):
    """Reader that plans in the driver's planner process and reads in the executors."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        self._options = options
        self._narrowing = Narrowing()
        self._reader = PartitionReader.of(options, shape)
        for name in (*STREAM_ONLY, LISTED_AGAIN):
            if name in options.given:
                _log.warning("%s means nothing in a batch query", name)
        _check_bounds(options)

    def partitions(self) -> list[InputPartition]:
        """Plan the partitions. Raises Invalid, Corrupt, Unavailable."""
        options = self._options
        if self._reader.options.tags == ():
            return []
        location = self._reader.location
        catalogue = listing_of(location)
        for finding in catalogue.findings:
            if finding.severity is Severity.DAMAGE:
                _log.warning("%s", finding)
        with closing(location.connect()) as provider:
            ranges = list(_ranges(provider, catalogue, options, self._narrowing))
        # The few bytes of units alone do not justify the overhead of a task.
        read, how = self._reader.shape.read, self._reader.options
        sized = (
            one if needs_records(read, one, how) else replace(one, size_bytes=one.count * UNIT_SIZE)
            for one in ranges
        )
        return [
            *partitions_of(
                list(sized),
                partition_bytes=options.max_partition_bytes,
                min_partitions=options.min_partitions,
                max_messages=options.max_records_per_partition,
            )
        ]

    @property
    def partition_reader(self) -> PartitionReader:
        return self._reader

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition. Raises Corrupt, Invalid for lost data, Unavailable."""
        if isinstance(partition, TieredPartition):  # Spark makes one of its own if there is none
            yield from self._reader.batches(partition)


class PushDownReader(TieredBatchReader):
    """Batch reader that accepts filters. Use it only in sessions that push filters down, because
    Spark rejects it in others."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Use the filters for the plan, and return all of them. Spark applies them again, because
        it may reuse the plan for other queries over the same DataFrame."""
        self._narrowing = narrow_by_filters(self._narrowing, filters)
        if self._narrowing.tags is not None:
            tags = self._narrowing.tags.intersection(
                self._options.read.tags or self._narrowing.tags
            )
            # Spark sends the reader to the executors as it is now, before it asks for partitions.
            read = replace(self._options.read, tags=tuple(sorted(tags)))
            self._reader = replace(self._reader, options=read)
        return filters


def _check_bounds(options: SourceOptions) -> None:
    if options.starting is not None and options.ending is not None:
        require_order(options.starting.time_ms, options.ending.time_ms)
    for bound, not_this, name in (
        (options.starting, LATEST, "startingOffsets: latest"),
        (options.ending, EARLIEST, "endingOffsets: earliest"),
    ):
        if bound is not None and not_this in {bound.default, *bound.by_queue.values()}:
            raise Invalid(f"{name}: nothing would be read in a batch query")


def _ranges(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    options: SourceOptions,
    narrowing: Narrowing,
) -> Iterator[ScanRange]:
    queues = select_queues(options, catalogue)
    check_named(options.starting, "startingOffsets", queues)
    check_named(options.ending, "endingOffsets", queues)
    kept = [queue for queue in queues if narrowing.keeps(queue)]
    is_cut = options.max_records_per_partition is not None or options.min_partitions > 1
    has_witness = is_cut or not waits_for_network(provider)
    if options.read.keys is None:

        def plan_one(queue: QueueFiles) -> list[ScanRange]:
            with open_queue(provider, queue) as reader:
                window = _window(reader, options, narrowing)
                bounds = ScanBounds(
                    window.low,
                    window.high,
                    window.since_ms,
                    window.until_ms,
                    range_bytes=options.max_partition_bytes,
                    narrow=True,
                    search_times=options.search_times,
                    has_witness=has_witness,
                )
                return plan_queue(reader, bounds)

        has_times = narrowing.has_times or any(
            bound is not None and bound.has_times for bound in (options.starting, options.ending)
        )
        is_whole = narrowing == Narrowing() and options.starting is None and options.ending is None

        def waits(queue: QueueFiles) -> bool:
            size = options.max_partition_bytes
            return is_cut or not is_whole or needs_reads(queue, range_bytes=size, is_part=False)

        warns = has_times and options.search_times is SearchTimes.EXACT
        yield from plan_each(provider, kept, plan_one, warns=warns, waits=waits)
        return

    def find_window(queue: QueueFiles) -> _Window:
        with open_queue(provider, queue) as reader:
            return _window(reader, options, narrowing)

    windows = dict(zip(map(key_of, kept), map_ahead(provider, find_window, kept), strict=True))
    selection = Selection(
        tags=options.read.tags,
        keys=options.read.keys,
        since_ms=narrowing.since_ms,
        until_ms=narrowing.until_ms,
    )
    only = replace(catalogue, queues=tuple(kept))
    for one in plan_ranges(
        provider,
        only,
        selection,
        range_bytes=options.max_partition_bytes,
        search_times=options.search_times,
        is_shared=True,
    ):
        within = windows[key_of(one.queue)].cut(one)
        if within.count > 0:
            yield within


@dataclass(frozen=True, slots=True)
class _Window:
    """Queue offsets [low, high) and store times [since, until) of a queue. None means no bound."""

    low: int
    high: int | None
    since_ms: int | None
    until_ms: int | None

    def cut(self, whole: ScanRange) -> ScanRange:
        """Return the part of a range that is within these offsets and times."""
        return replace(
            whole,
            from_offset=max(whole.from_offset, self.low),
            until_offset=least(whole.until_offset, self.high) or 0,
            since_ms=most(whole.since_ms, self.since_ms),
            until_ms=least(whole.until_ms, self.until_ms),
        )


def _window(reader: QueueReader, options: SourceOptions, narrowing: Narrowing) -> _Window:
    """Return the offsets and times of a queue that the options and filters allow."""
    queue = reader.queue

    def out_of_range(wanted: int, first: int, end: int) -> int:
        if wanted < first:
            if options.fail_on_data_loss:
                raise data_loss(queue, wanted, first, "(or never were there)")
            warn_of_loss(queue, wanted, first)
            return first
        message = f"{queue.path}: offset {wanted} is out of range: the queue has [{first}, {end})"
        if options.fail_on_data_loss:
            text = f"{message}. failOnDataLoss=false reads the existing ones"
            raise Invalid(text, topic=queue.topic, queue_id=queue.queue_id, offset=wanted)
        _log.warning("failOnDataLoss=false: %s", message)
        return end

    key = key_of(queue)

    def offset_of(bound: Bound | None) -> int | None:
        if bound is None or bound.time_of(key) is not None:
            return None
        return resolve_bound(reader, bound, out_of_range)

    def time_of(bound: Bound | None) -> int | None:
        return None if bound is None else bound.time_of(key)

    return _Window(
        max(offset_of(options.starting) or 0, narrowing.from_offset),
        least(offset_of(options.ending), narrowing.until_offset),
        most(time_of(options.starting), narrowing.since_ms),
        least(time_of(options.ending), narrowing.until_ms),
    )
