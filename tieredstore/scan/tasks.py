"""Scan of a tier as tasks for any process. Python, the command line and Spark use them."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.scan.ahead import waits_for_network
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.findings import LeftOut, OnFinding, make_on_finding, raise_on_damage
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import RANGE_BYTES, ScanRange, plan
from tieredstore.scan.read.options import ReadOptions
from tieredstore.scan.selection import Selection
from tieredstore.scan.time_search.modes import SearchTimes

if TYPE_CHECKING:
    import pyarrow as pa


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScanTask:
    """One range of a scan. Picklable, because it has no connection."""

    location: TierLocation
    range: ScanRange
    columns: tuple[str, ...]
    options: ReadOptions

    def read(self, *, on_finding: OnFinding | None = None) -> Iterator[pa.RecordBatch]:
        """Yield record batches of the range, through the task's own connection. `on_finding`:
        receives damage. By default, the option `on_damage` of the scan decides whether Corrupt is
        raised, or a warning about omitted messages is logged. Raises Invalid, Unavailable,
        Expired."""
        left_out = LeftOut()
        tell = on_finding or make_on_finding(self.options.on_damage, left_out)
        provider = self.location.connect()
        try:
            yield from self.read_through(provider, on_finding=tell)
            left_out.warn(_log)
        finally:
            provider.close()

    def read_through(
        self, provider: SegmentProvider, *, on_finding: OnFinding = raise_on_damage
    ) -> Generator[pa.RecordBatch]:
        """Yield record batches like `read`, but through the caller's connection."""
        from tieredstore.scan.arrow.read import arrow_batches

        return arrow_batches(
            provider, self.range, self.columns, self.options, on_finding=on_finding
        )


def plan_ranges(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    selection: Selection,
    *,
    range_bytes: int = RANGE_BYTES,
    use_index: bool = True,
    search_times: SearchTimes = SearchTimes.EXACT,
    is_shared: bool = False,
) -> Iterator[ScanRange]:
    """Yield ranges that contain every selected message. The ranges may also contain other messages.
    The read of a range leaves these out, by their tags, keys and times. Each range has at most
    about `range_bytes` of commit log. Keys are searched in the index files of each broker, and in
    messages that are not indexed. `use_index=False`: all messages are read, without the index. If
    times are selected, the matching queue offsets are searched. `is_shared`: whether several
    processes read the ranges. Raises Invalid, Corrupt, Unavailable."""
    queues = selection.queues(catalogue)
    has_witness = is_shared and not waits_for_network(provider)
    bounds = replace(selection.bounds(range_bytes, search_times), has_witness=has_witness)
    if selection.keys is None or not use_index:
        yield from plan(provider, queues, bounds)
        return
    # With it comes the tier's index, which every other plan would wait for.
    from tieredstore.scan.keys.plan import plan_by_keys

    for broker, group in groupby(queues, key=lambda queue: queue.broker):
        index = catalogue.indexes.get(broker, ())
        yield from plan_by_keys(provider, broker, index, list(group), selection.keys, bounds)
