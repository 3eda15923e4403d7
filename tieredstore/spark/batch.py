"""Batch reads: what is there when the query is planned, in partitions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Invalid
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.arrow.read import needs_records
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Severity
from tieredstore.scan.plan import ScanBounds, ScanRange, needs_reads, plan_queue
from tieredstore.scan.selection import Selection
from tieredstore.scan.tasks import plan_ranges
from tieredstore.spark.offsets import EARLIEST, LATEST
from tieredstore.spark.options import LISTED_AGAIN, STREAM_ONLY, Bound, SourceOptions
from tieredstore.spark.partitions import TieredPartition, partitions_of
from tieredstore.spark.push_down import Narrowing, narrow_by_filters
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
    """Plans in the driver's planner process, reads in the executors."""

    def __init__(self, options: SourceOptions, shape: Shape) -> None:
        self._options = options
        self._narrowing = Narrowing()
        self._reader = PartitionReader(
            options.tier(),
            shape,
            options.read,
            options.fail_on_data_loss,
            options.skip_corrupt,
            options.corrupt_report_path,
        )
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
        provider = location.connect()
        try:
            ranges = list(_ranges(provider, catalogue, options, self._narrowing))
        finally:
            provider.close()
        found: list[InputPartition] = []
        found += partitions_of(
            [_measure_range(one, self._reader) for one in ranges],
            partition_bytes=options.max_partition_bytes,
            min_partitions=options.min_partitions,
            max_messages=options.max_records_per_partition,
        )
        return found

    @property
    def partition_reader(self) -> PartitionReader:
        return self._reader

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition. Raises Corrupt, Invalid for lost data, Unavailable."""
        if isinstance(partition, TieredPartition):  # Spark makes one of its own where there is none
            yield from self._reader.batches(partition)


class PushDownReader(TieredBatchReader):
    """The same for sessions that push filters down; in others Spark refuses such a class."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Plan by the filters, and give all of them back: Spark uses what was planned here for
        other queries over the same DataFrame too, which so get no row that they exclude."""
        self._narrowing = narrow_by_filters(self._narrowing, filters)
        if self._narrowing.tags is not None:
            tags = self._narrowing.tags.intersection(
                self._options.read.tags or self._narrowing.tags
            )
            # Spark sends the reader to the executors as it is now, before it asks for partitions.
            read = replace(self._options.read, tags=tuple(sorted(tags)))
            self._reader = replace(self._reader, options=read)
        return filters


def _measure_range(one: ScanRange, reader: PartitionReader) -> ScanRange:
    """The range with the bytes that reading it takes: those of its units where no column needs the
    commit log. A task has costs of its own, which so few bytes would not be worth."""
    if needs_records(reader.shape.read, one, reader.options):
        return one
    return replace(one, size_bytes=one.count * UNIT_SIZE)


def _check_bounds(options: SourceOptions) -> None:
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
    if options.read.keys is None:

        def plan_one(queue: QueueFiles) -> list[ScanRange]:
            with QueueReader(provider, queue) as reader:
                window = _window(reader, options, narrowing)
                bounds = ScanBounds(
                    window.low,
                    window.high,
                    window.since_ms,
                    window.until_ms,
                    range_bytes=options.max_partition_bytes,
                    narrow=True,
                    search_times=options.search_times,
                )
                return list(plan_queue(reader, bounds))

        is_whole = narrowing == Narrowing() and options.starting is None and options.ending is None

        def waits(queue: QueueFiles) -> bool:
            most = options.max_partition_bytes
            return not is_whole or needs_reads(queue, range_bytes=most, is_part=False)

        for ranges in map_ahead(provider, plan_one, kept, waits=waits):
            yield from ranges
        return

    def find_window(queue: QueueFiles) -> _Window:
        with QueueReader(provider, queue) as reader:
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
    ):
        within = windows[key_of(one.queue)].cut(one)
        if within.count > 0:
            yield within


@dataclass(frozen=True, slots=True)
class _Window:
    """Queue offsets [low, high) and store times [since, until) of a queue; None for no bound."""

    low: int
    high: int | None
    since_ms: int | None
    until_ms: int | None

    def cut(self, whole: ScanRange) -> ScanRange:
        """Return what of a range is within."""
        return replace(
            whole,
            from_offset=max(whole.from_offset, self.low),
            until_offset=_least([whole.until_offset, self.high]) or 0,
            since_ms=_most([whole.since_ms, self.since_ms]),
            until_ms=_least([whole.until_ms, self.until_ms]),
        )


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _window(reader: QueueReader, options: SourceOptions, narrowing: Narrowing) -> _Window:
    """What options and filters together leave of a queue."""
    queue = reader.queue

    def out_of_range(wanted: int, least: int, most: int) -> int:
        if wanted < least:
            if options.fail_on_data_loss:
                raise data_loss(queue, wanted, least, "(or never were there)")
            warn_of_loss(queue, wanted, least)
            return least
        message = f"{queue.path}: offset {wanted} is out of range: the queue has [{least}, {most})"
        if options.fail_on_data_loss:
            raise Invalid(
                f"{message}; failOnDataLoss=false takes what is there",
                topic=queue.topic,
                queue_id=queue.queue_id,
                offset=wanted,
            )
        _log.warning("failOnDataLoss=false: %s", message)
        return most

    key = key_of(queue)

    def offset_of(bound: Bound | None) -> int | None:
        if bound is None or bound.time_of(key) is not None:
            return None
        return resolve_bound(reader, bound, out_of_range)

    def time_of(bound: Bound | None) -> int | None:
        return None if bound is None else bound.time_of(key)

    return _Window(
        max(offset_of(options.starting) or 0, narrowing.from_offset),
        _least([offset_of(options.ending), narrowing.until_offset]),
        _most([time_of(options.starting), narrowing.since_ms]),
        _least([time_of(options.ending), narrowing.until_ms]),
    )
