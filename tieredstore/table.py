"""A tier as a table: `tieredstore.open(url).scan(topic=…)`, for pyarrow, pandas, DuckDB and Polars.

Each library is imported when its method is called. `docs/scan.md` has examples.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tieredstore import jobs
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.errors import make_missing_error
from tieredstore.message.compression import DEFAULT_BODY_LIMIT_BYTES
from tieredstore.scan import arguments
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.findings import LeftOut, OnDamage, OnFinding, make_on_finding
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation, locate
from tieredstore.scan.plan import RANGE_BYTES
from tieredstore.scan.read.batches import BATCH_BYTES
from tieredstore.scan.read.options import ReadOptions
from tieredstore.scan.read.small_ranges import read_small_ahead
from tieredstore.scan.selection import Selection, require_match
from tieredstore.scan.tasks import ScanTask, plan_ranges
from tieredstore.scan.time_search.modes import SearchTimes, parse_search_times
from tieredstore.scan.times import Time, epoch_ms, require_offsets, require_order

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.scan.arrow.dataset import ScanDataset
    from tieredstore.scan.arrow.pruning import Narrowing

_log = logging.getLogger(__name__)


def open_tier(
    url: str | Path,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    state: str | Path | None = None,
    config: str | Path | None = None,
    properties: Mapping[str, str] | None = None,
) -> Tier:
    """Open the tier at a URL (`file:///dir`, `s3://bucket/prefix`, …) or in a folder, for reading.

    `cluster`: required if the tier has several clusters.
    `broker`: name of the broker.
    `state`: a broker's storePathRootDir. The metadata in that folder then defines the valid
    segments.
    `config`: a broker.conf.
    `properties`: keys that override those of `config`.

    Raises Invalid, Unavailable.
    """
    return Tier(
        locate(
            str(url),
            cluster=cluster,
            broker=broker,
            state=None if state is None else Path(state),
            config=None if config is None else Path(config),
            properties=properties,
        )
    )


class Tier:
    """Tier for reading. Each plan lists the tier again. Jobs are available as methods:
    `tier.verify()` is `tieredstore.jobs.verify(tier)`."""

    export = jobs.export
    verify = jobs.verify
    report = jobs.report
    copy = jobs.copy
    rebuild_metadata = jobs.rebuild_metadata
    restore = jobs.restore
    rebuild_index = jobs.rebuild_index
    compact_index = jobs.compact_index

    def __init__(self, location: TierLocation) -> None:
        self.location = location

    def __repr__(self) -> str:
        return f"Tier({self.location!r})"

    def catalogue(self) -> TierCatalogue:
        """Load the current catalogue of the tier. Raises Unavailable, Corrupt, and Invalid for the
        `state` of another tier."""
        provider = self.location.connect()
        try:
            return self.catalogue_through(provider)
        finally:
            provider.close()

    def catalogue_through(self, provider: SegmentProvider) -> TierCatalogue:
        """Load the catalogue through a provider that the caller has opened."""
        metadata = self.location.metadata()
        try:
            catalogue = load_catalogue(provider, metadata, broker=self.location.broker)
            catalogue.require_own_state()
            return catalogue
        finally:
            if metadata is not None:
                metadata.close()

    def topics(self) -> list[str]:
        """Return the names of the topics with messages in the tier."""
        return self.catalogue().topic_names()

    def scan(
        self,
        topic: str | Sequence[str] | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        topic_pattern: str | None = None,
        brokers: str | Sequence[str] | None = None,
        queue_ids: int | Sequence[int] | None = None,
        from_offset: int | None = None,
        until_offset: int | None = None,
        since: Time | None = None,
        until: Time | None = None,
        tags: str | Sequence[str] | None = None,
        keys: str | Sequence[str] | None = None,
        check_bodies: bool = True,
        body_limit_bytes: int = DEFAULT_BODY_LIMIT_BYTES,
        batch_bytes: int = BATCH_BYTES,
        use_index: bool = True,
        search_times: str = SearchTimes.EXACT,
        verify_records: bool = False,
        limit: int | None = None,
        on_damage: str = "fail",
        on_finding: OnFinding | None = None,
    ) -> Scan:
        """Select messages as rows, in order within a queue only. Nothing is read yet.

        `columns`: None for all but `properties`.
        `topic_pattern`: a regular expression for whole names.
        `from_offset`, `until_offset`: queue offsets [from, until).
        `since`, `until`: store times [since, until).
        `tags`, `keys`: messages that have one of the tags, or one of the keys.
        `check_bodies`: compare bodies with their CRCs.
        `use_index`: search keys in the index files.
        `search_times`: `exact` finds every message with a store time in [since, until). `sampled`
        checks some messages of a large queue, and may miss messages after a step of a clock.
        `verify_records`: read and check the commit log even if the consume queue is enough.
        `limit`: maximum number of rows.
        `on_damage`: `fail` raises Corrupt after the good rows in front of the damage. `skip` leaves
        damaged messages out and counts them (`Scan.left_out`).
        `on_finding`: function that is called for each damage, instead of `on_damage`. If the
        function returns, the message is left out. Raises Invalid.
        """
        _require("pyarrow", "arrow")
        from tieredstore.scan.arrow.schema import choose_columns

        arguments.require_flags(
            check_bodies=check_bodies, use_index=use_index, verify_records=verify_records
        )
        if on_finding is not None:
            arguments.require_function("on_finding", on_finding)
        mode = parse_search_times(search_times)
        now_ms = SYSTEM_CLOCK.now_ms()
        selection = Selection(
            topics=arguments.take_texts("topic", topic),
            topic_pattern=arguments.take_text("topic_pattern", topic_pattern),
            brokers=arguments.take_texts("brokers", brokers),
            queue_ids=arguments.take_numbers("queue_ids", queue_ids),
            from_offset=arguments.take_number("from_offset", from_offset),
            until_offset=arguments.take_number("until_offset", until_offset),
            since_ms=epoch_ms(since, now_ms),
            until_ms=epoch_ms(until, now_ms),
            tags=arguments.take_tags("tags", tags),
            keys=arguments.take_texts("keys", keys),
        )
        require_order(selection.since_ms, selection.until_ms)
        require_offsets(selection.from_offset, selection.until_offset)
        options = ReadOptions(
            arguments.require_size("batch_bytes", batch_bytes),
            check_bodies,
            arguments.require_size("body_limit_bytes", body_limit_bytes),
            selection.tags,
            selection.keys,
            verify_records,
            arguments.take_number("limit", limit, "0 or more", least=0),
            arguments.require_choice("on_damage", OnDamage, on_damage),
        )
        names = choose_columns(arguments.take_texts("columns", columns))
        return Scan(self, selection, names, options, on_finding, use_index, mode)


@dataclass(eq=False, repr=False)
class Scan:
    """Selected messages. Each method that returns data reads the messages again."""

    _tier: Tier
    _selection: Selection
    _columns: tuple[str, ...]
    _options: ReadOptions
    _report: OnFinding | None
    _use_index: bool
    _search_times: SearchTimes
    _narrowing: Narrowing | None = None
    left_out: LeftOut = field(default_factory=LeftOut)
    """Messages that `on_damage="skip"` left out, in all reads of this scan."""

    @property
    def schema(self) -> pa.Schema:
        from tieredstore.scan.arrow.schema import schema_of

        return schema_of(self._columns)

    def plan(self, *, target_bytes: int = RANGE_BYTES) -> list[ScanTask]:
        """Plan the scan as picklable tasks of about `target_bytes` of commit log. `task.read()`
        runs in any process or machine that reaches the tier. With a limit, each task reads at most
        that many rows. Raises Invalid, Corrupt, Unavailable."""
        target_bytes = arguments.require_size("target_bytes", target_bytes)
        provider = self._tier.location.connect()
        try:
            return list(self._tasks(provider, target_bytes, is_shared=True))
        finally:
            provider.close()

    def _tasks(
        self, provider: SegmentProvider, target_bytes: int, *, is_shared: bool = False
    ) -> Iterator[ScanTask]:
        """Plan the tasks of this scan one by one, as the caller takes them. `is_shared`: whether
        several processes may read them."""
        catalogue = self._tier.catalogue_through(provider)
        require_match(self._selection, catalogue)
        selection, narrowing = self._selection, self._narrowing
        ranges = plan_ranges(
            provider,
            catalogue,
            selection if narrowing is None else _intersect(selection, narrowing),
            range_bytes=target_bytes,
            use_index=self._use_index,
            search_times=self._search_times,
            is_shared=is_shared,
        )
        for scan_range in ranges:
            yield ScanTask(self._tier.location, scan_range, self._columns, self._options)

    def batches(self) -> Generator[pa.RecordBatch]:
        """Yield record batches of 2 to 4 MiB over one connection. Small queues share batches.
        Closing the iterator closes the connection. Raises the errors of `plan`."""
        from tieredstore.scan.arrow.join import join_small_batches
        from tieredstore.scan.arrow.read import limit_rows

        limit, batches = self._options.limit, self._batches()
        return join_small_batches(
            batches if limit is None else limit_rows(batches, limit), self._options.batch_bytes
        )

    def _batches(self) -> Generator[pa.RecordBatch]:
        told = self.left_out.count
        tell = self._report or make_on_finding(self._options.on_damage, self.left_out)
        provider = self._tier.location.connect()
        try:
            yield from read_small_ahead(
                provider,
                self._tasks(provider, RANGE_BYTES),
                lambda task: task.range.size_bytes,
                lambda task, tell: task.read_through(provider, on_finding=tell),
                tell,
            )
            if self.left_out.count > told:
                self.left_out.warn(_log)
        finally:
            provider.close()

    def count_rows(self) -> int:
        """Count the rows. Without times, tags, keys and `verify_records`, this reads the consume
        queue only. Raises the errors of `plan`."""
        counted = replace(self, _columns=("queue_offset",))
        return sum(batch.num_rows for batch in counted.batches())

    def to_arrow(self) -> pa.Table:
        """Read all rows into memory."""
        import pyarrow as pa

        return pa.Table.from_batches(self.batches(), self.schema)

    def to_dataset(self) -> ScanDataset:
        """Return a pyarrow dataset. Its reader selects columns and conditions. Only matching
        columns, queues, queue offsets and store times are read."""
        from tieredstore.scan.arrow.dataset import ScanDataset

        return ScanDataset(self.schema, self._read_narrowed)

    def _read_narrowed(
        self, columns: tuple[str, ...], narrowing: Narrowing
    ) -> Generator[pa.RecordBatch]:
        if narrowing.is_empty:
            return
        # With a limit, the first rows are those of the whole scan.
        chosen = narrowing if self._options.limit is None else None
        yield from replace(self, _columns=columns, _narrowing=chosen).batches()

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Return a stream of all rows with bounded memory. The stream can be read once. Closing the
        stream closes the connection to the tier."""
        import pyarrow as pa

        # A reader over the C interface drops the object that it wraps when it is closed.
        return pa.RecordBatchReader.from_stream(self)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Read the rows again, and return them as Arrow's C stream."""
        import pyarrow as pa

        stream = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return stream.__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> pd.DataFrame:
        """Read all rows into memory as a pandas frame, converted by pyarrow."""
        _require("pandas", "pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Read all rows into memory as a Polars frame."""
        polars = _require("polars", "polars")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow())
        return frame

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return a relation over the tier. Each query reads the tier again, with bounded memory,
        and reads only the parts that it needs (`to_dataset`). `.create("name")` copies the rows
        into a table that several queries can share."""
        engine = connection if connection is not None else _require("duckdb", "duckdb")
        relation: duckdb.DuckDBPyRelation = engine.from_arrow(self.to_dataset())
        return relation


def _intersect(selection: Selection, narrowing: Narrowing) -> Selection:
    queue_ids = narrowing.queue_ids
    if queue_ids is not None and selection.queue_ids is not None:
        queue_ids = tuple(one for one in queue_ids if one in selection.queue_ids)
    return replace(
        selection,
        queue_ids=selection.queue_ids if queue_ids is None else queue_ids,
        from_offset=_choose(max, selection.from_offset, narrowing.from_offset),
        until_offset=_choose(min, selection.until_offset, narrowing.until_offset),
        since_ms=_choose(max, selection.since_ms, narrowing.since_ms),
        until_ms=_choose(min, selection.until_ms, narrowing.until_ms),
    )


def _choose(choose: Callable[[list[int]], int], *borders: int | None) -> int | None:
    given = [border for border in borders if border is not None]
    return choose(given) if given else None


def _require(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise make_missing_error(f"to_{module}", error, extra) from error
