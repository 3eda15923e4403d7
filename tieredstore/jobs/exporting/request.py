"""Request for an export: source, target and form."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.bodies.schema import BodySchema, read_body_schema
from tieredstore.jobs.exporting.following import parse_interval
from tieredstore.jobs.exporting.partition import BY_TOPIC_AND_DAY, PartitionBy, parse_partition_by
from tieredstore.jobs.options import (
    DEFAULT_DEDUP_WINDOW,
    DEFAULT_FILE_BYTES,
    DEFAULT_ZSTD_LEVEL,
    ExportOptions,
    check_files,
    list_names,
)
from tieredstore.scan.arrow.schema import TYPES, choose_columns
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.findings import OnDamage
from tieredstore.scan.selection import Selection, require_topics, split_topics
from tieredstore.scan.time_search.modes import SearchTimes, parse_search_times
from tieredstore.scan.times import epoch_ms, require_offsets, require_order
from tieredstore.tier_url import show_url

_MOST_WINDOW_MS = 100 * 366 * 86_400_000
_ALL = Selection()
_Choice = TypeVar("_Choice", bound=enum.StrEnum)


class Format(enum.StrEnum):
    """Format of a target: a folder of Parquet files, a table of a pyiceberg catalog, or a Delta
    table."""

    PARQUET = "parquet"
    ICEBERG = "iceberg"
    DELTA = "delta"


class OnUnfit(enum.StrEnum):
    """Handling of a body that does not fit the schema: set its columns to null, or end the job."""

    NULL = "null"
    FAIL = "fail"


class Accept(enum.StrEnum):
    """Conditions that end the job unless the user accepts them. `GAP`: messages expired before they
    were exported. `REMADE`: a topic was recreated. The new topic is then exported from its first
    message. `MOVED`: the tier is at another URL than before. `TOPICS`: the choice of topics,
    brokers or queues has changed."""

    GAP = "gap"
    REMADE = "remade"
    MOVED = "moved"
    TOPICS = "topics"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """One export: the parsed and checked `ExportOptions`. `selection`: queues, start and end of the
    run. Tags and keys are not supported. `dedup_window_ms`: drop messages whose UNIQ_KEY occurred
    in their topic within this time before. None keeps all. Raises Invalid."""

    format: Format
    to: str | None = field(default=None, repr=False)
    catalog: str | None = None
    table: str | None = None
    selection: Selection = _ALL
    search_times: SearchTimes = SearchTimes.EXACT
    topics: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    properties: bool = False
    target_file_bytes: int = DEFAULT_FILE_BYTES
    zstd_level: int = DEFAULT_ZSTD_LEVEL
    on_damage: OnDamage = OnDamage.FAIL
    accept: frozenset[Accept] = frozenset()
    partition_by: PartitionBy = BY_TOPIC_AND_DAY
    body_schema: BodySchema | None = None
    on_unfit: OnUnfit = OnUnfit.NULL
    dedup_window_ms: int | None = None
    target_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_files(self.target_file_bytes, self.zstd_level)
        if self.dedup_window_ms is not None and not 1 <= self.dedup_window_ms <= _MOST_WINDOW_MS:
            raise Invalid(
                f"dedup_window_ms: expected 1 to {_MOST_WINDOW_MS}, found {self.dedup_window_ms}"
            )
        if self.selection.tags is not None or self.selection.keys is not None:
            raise Invalid("an export is of whole queues: it takes no tags and no keys")
        if self.format is Format.ICEBERG:
            if self.catalog is None or self.table is None:
                raise Invalid(
                    "iceberg needs a catalog (--catalog NAME) and a table (--table NAMESPACE.NAME)"
                )
        elif self.to is None or self.catalog is not None or self.table is not None:
            raise Invalid(f"{self.format} needs a folder to write to, and no catalog or table")

    def require_topics(self, catalogue: TierCatalogue) -> None:
        """Raise Invalid for a name or shell pattern that matches no topic. Otherwise a misspelt
        name would create a target that later rejects the correct one."""
        require_topics(catalogue, self.topics)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Columns of the target by name, in order. Raises Invalid for unknown columns."""
        names = list(choose_columns(self.columns))
        if self.properties and "properties" not in names:
            names.append("properties")
        needed = [name for name in self.partition_by.needed_columns if name not in names]
        bodies = {} if self.body_schema is None else self.body_schema.types
        return {name: TYPES[name] for name in (*needed, *names)} | bodies

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(self.types)

    def describe_form(self) -> dict[str, object]:
        """Return the form settings of the target that are not defaults, as JSON."""
        found: dict[str, object] = {}
        if self.partition_by != BY_TOPIC_AND_DAY:
            found["partition_by"] = self.partition_by.names
        if self.body_schema is not None:
            found["body_schema"] = str(self.body_schema)
            if self.body_schema.prefix:
                found["body_prefix"] = self.body_schema.prefix
        if self.dedup_window_ms is not None:
            found["dedup_window_ms"] = self.dedup_window_ms
        return found

    @property
    def target(self) -> str:
        """Name of the target in messages and reports."""
        if self.format is Format.ICEBERG:
            return f"{self.catalog}:{self.table}"
        return show_url(self.to or "")

    def identity(self) -> dict[str, object]:
        """Return the identity of this export for a journal. It contains no secrets."""
        chosen_ = self.selection
        found: dict[str, object] = {
            "format": self.format.value,
            "target": self.target,
            "to": None if self.to is None else show_url(self.to),
            **self.describe_selection(),
            "from_offset": chosen_.from_offset,
            "until_offset": chosen_.until_offset,
            "since_ms": chosen_.since_ms,
            "until_ms": chosen_.until_ms,
            "columns": list(self.column_names),
            "target_file_bytes": self.target_file_bytes,
            "zstd_level": self.zstd_level,
            "on_damage": self.on_damage.value,
            "accept": sorted(self.accept),
            **self.describe_form(),
        }
        if self.search_times is not SearchTimes.EXACT:
            found["search_times"] = self.search_times.value
        if self.on_unfit is not OnUnfit.NULL:
            found["on_unfit"] = self.on_unfit.value
        return found

    def describe_selection(self) -> dict[str, object]:
        """Return the choice of queues as JSON."""
        chosen_ = self.selection
        return {
            "topics": None if chosen_.topics is None else sorted(chosen_.topics),
            "topic_pattern": chosen_.topic_pattern,
            "brokers": None if chosen_.brokers is None else sorted(chosen_.brokers),
            "queue_ids": None if chosen_.queue_ids is None else sorted(chosen_.queue_ids),
        }


def make_request(options: ExportOptions, now_ms: int) -> ExportRequest:
    """Check the options of an export. `now_ms`: epoch ms, for relative times. Raises Invalid."""
    if options.dedup_window is not None and not options.dedup:
        raise Invalid("dedup_window: is for an export with dedup")
    window = options.dedup_window or DEFAULT_DEDUP_WINDOW
    topics, schema = list_names(options.topics), options.body_schema
    return ExportRequest(
        _choose("format", Format, options.format),
        to=None if options.to is None else str(options.to),
        catalog=options.catalog,
        table=options.table,
        selection=_select_queues(options, topics, now_ms),
        search_times=parse_search_times(options.search_times),
        topics=topics,
        columns=None if options.columns is None else tuple(options.columns),
        properties=options.properties,
        target_file_bytes=options.target_file_bytes,
        zstd_level=options.zstd_level,
        on_damage=_choose("on_damage", OnDamage, options.on_damage),
        accept=frozenset(_choose("accept", Accept, name) for name in options.accept),
        partition_by=parse_partition_by(options.partition_by),
        body_schema=None if schema is None else read_body_schema(schema, options.body_prefix),
        on_unfit=_choose("on_unfit", OnUnfit, options.on_unfit),
        dedup_window_ms=parse_interval(window, "dedup_window") if options.dedup else None,
        target_options=dict(options.target_options or {}),
    )


def _select_queues(options: ExportOptions, topics: Sequence[str], now_ms: int) -> Selection:
    """Select the queues of the given topics, or of all. Raises Invalid if a range ends before it
    starts."""
    since_ms, until_ms = epoch_ms(options.since, now_ms), epoch_ms(options.until, now_ms)
    require_order(since_ms, until_ms)
    require_offsets(options.from_offset, options.until_offset)
    names, pattern = split_topics(topics)
    return Selection(
        topics=names,
        topic_pattern=pattern,
        queue_ids=tuple(options.queues) or None,
        from_offset=options.from_offset,
        until_offset=options.until_offset,
        since_ms=since_ms,
        until_ms=until_ms,
    )


def _choose(name: str, kind: type[_Choice], given: str) -> _Choice:
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(kind)
        raise Invalid(f"{name}: expected one of {known}, found {given!r}") from None
