"""Batch reads: what is there when the query is planned, in partitions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Invalid
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Severity
from tieredstore.scan.plan import ScanRange, offset_by_time, plan
from tieredstore.scan.tasks import Selection, plan_ranges
from tieredstore.spark.offsets import EARLIEST, LATEST, QueueKey
from tieredstore.spark.options import STREAM_ONLY, Bound, SourceOptions
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
        for name in STREAM_ONLY:
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
            ranges,
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
    bounds = {key_of(queue): _bounds(provider, queue, options, narrowing) for queue in kept}
    if options.read.keys is None:
        for queue in kept:
            low, high = bounds[key_of(queue)]
            yield from plan(
                provider,
                [queue],
                from_offset=low,
                until_offset=high,
                range_bytes=options.max_partition_bytes,
                narrow=True,
            )
        return
    yield from _by_keys(provider, catalogue, kept, bounds, options)


def _by_keys(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    queues: list[QueueFiles],
    bounds: dict[QueueKey, tuple[int, int | None]],
    options: SourceOptions,
) -> Iterator[ScanRange]:
    """Ranges of the messages that index files name, and of those behind the index."""
    only = replace(catalogue, queues=tuple(queues))
    for one in plan_ranges(
        provider,
        only,
        Selection(tags=options.read.tags, keys=options.read.keys),
        range_bytes=options.max_partition_bytes,
    ):
        low, high = bounds[key_of(one.queue)]
        first = max(one.from_offset, low)
        last = one.until_offset if high is None else min(one.until_offset, high)
        if first < last:
            yield replace(one, from_offset=first, until_offset=last)


def _bounds(
    provider: SegmentProvider, queue: QueueFiles, options: SourceOptions, narrowing: Narrowing
) -> tuple[int, int | None]:
    """Queue offsets [from, until) to read; until is None for all."""

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

    def offset_of(bound: Bound | None) -> int | None:
        return None if bound is None else resolve_bound(provider, queue, bound, out_of_range)

    low, high = offset_of(options.starting) or 0, offset_of(options.ending)
    low = max(low, narrowing.from_offset)
    ends = [end for end in (high, narrowing.until_offset) if end is not None]
    if narrowing.since_ms is not None or narrowing.until_ms is not None:
        with QueueReader(provider, queue) as reader:
            if narrowing.since_ms is not None:
                low = max(low, offset_by_time(reader, narrowing.since_ms))
            if narrowing.until_ms is not None:
                ends.append(offset_by_time(reader, narrowing.until_ms))
    return low, min(ends, default=None)
