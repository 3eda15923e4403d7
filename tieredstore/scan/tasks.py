"""A scan over a tier, cut into tasks that any process can do: Python, the command line and Spark
plan with it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.findings import OnFinding, raise_on_damage
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import RANGE_BYTES, ScanRange
from tieredstore.scan.read.options import ReadOptions
from tieredstore.scan.selection import ScanQuery, Selection

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ScanTask:
    """One range of a scan, readable in any process. Picklable: it holds no connection."""

    location: TierLocation
    range: ScanRange
    columns: tuple[str, ...]
    options: ReadOptions

    def read(self, *, on_finding: OnFinding = raise_on_damage) -> Iterator[pa.RecordBatch]:
        """Read record batches of the range, through a connection of its own.

        Damage goes to `on_finding`, which by default raises Corrupt. Raises Invalid, Unavailable.
        """
        provider = self.location.connect()
        try:
            yield from self.read_through(provider, on_finding=on_finding)
        finally:
            provider.close()

    def read_through(
        self, provider: SegmentProvider, *, on_finding: OnFinding = raise_on_damage
    ) -> Generator[pa.RecordBatch]:
        """Do `read` over a connection that the caller has."""
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
    search_times: bool = True,
) -> Iterator[ScanRange]:
    """Yield ranges that hold every message selected, and others, which reading leaves out by tags,
    keys and times. At most about `range_bytes` of commit log each.

    Keys are looked for in the index files of each broker, and in the messages that these do not
    name; `use_index=False` looks at all messages. Times are searched for, so that few messages of
    others are read; `search_times=False` reads and compares all. Raises Invalid, Corrupt,
    Unavailable.
    """
    queues = selection.queues(catalogue)
    query = ScanQuery(selection, range_bytes, search_times)
    if selection.keys is None or not use_index:
        yield from query.plan_all(provider, queues)
        return
    # With it comes the tier's index, which every other plan would wait for.
    from tieredstore.scan.keys.plan import plan_by_keys

    for broker, group in groupby(queues, key=lambda queue: queue.broker):
        yield from plan_by_keys(
            provider, broker, catalogue.indexes.get(broker, ()), list(group), query
        )
