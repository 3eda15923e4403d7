"""What to export, where to, and in which form."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.bodies.schema import BodySchema
from tieredstore.jobs.exporting.partition import BY_TOPIC_AND_DAY, PartitionBy
from tieredstore.scan.arrow.schema import TYPES, choose_columns
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.selection import Selection, require_topics, split_topics
from tieredstore.scan.times import require_order
from tieredstore.tier_url import show_url

LEAST_FILE_BYTES, MOST_FILE_BYTES = 1 << 20, 4 << 30
DEFAULT_FILE_BYTES = 128 << 20
DEFAULT_ZSTD_LEVEL = 3
DEFAULT_DEDUP_WINDOW = "10m"
_MOST_WINDOW_MS = 100 * 366 * 86_400_000
_ALL = Selection()


class Format(enum.StrEnum):
    """PARQUET: a folder of files. ICEBERG: a table of a pyiceberg catalog. DELTA: a folder that is
    a Delta table."""

    PARQUET = "parquet"
    ICEBERG = "iceberg"
    DELTA = "delta"


class OnCorrupt(enum.StrEnum):
    """What a damaged message does: FAIL ends the job, SKIP leaves it out and counts it."""

    FAIL = "fail"
    SKIP = "skip"


class OnUnfit(enum.StrEnum):
    """What a body does that does not fit the schema: NULL gives nulls and counts it, FAIL ends the
    job."""

    NULL = "null"
    FAIL = "fail"


class Accept(enum.StrEnum):
    """What would end the job, and is gone past when it is named.

    GAP: messages that expired before they were exported. REMADE: a topic that was made again; its
    new messages are exported from their start. MOVED: a target of a tier at another URL. TOPICS: a
    target of another choice of topics, brokers or queues.
    """

    GAP = "gap"
    REMADE = "remade"
    MOVED = "moved"
    TOPICS = "topics"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """One export. `selection` says which queues, and with offsets and store times where a queue
    begins that the target does not have yet, and where this run ends. Tags and keys are not for
    exports.

    to: folder of the target as a URL or a path; for Iceberg, where a new table is put (the catalog
    decides without it). catalog, table: of pyiceberg, `namespace.name`. columns: None for all but
    properties; topic, store time, and the column of buckets always are. body_schema: of JSON bodies
    whose members become columns. dedup_window_ms: leave out messages with the UNIQ_KEY of an
    earlier one of their topic that was stored at most so long before; None keeps all.
    target_file_bytes: size of a data file, about. target_options: for the target's file system, or
    properties of the catalog (`docs/jobs.md`). Raises Invalid.
    """

    format: Format
    to: str | None = field(default=None, repr=False)
    catalog: str | None = None
    table: str | None = None
    selection: Selection = _ALL
    topics: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    properties: bool = False
    target_file_bytes: int = DEFAULT_FILE_BYTES
    zstd_level: int = DEFAULT_ZSTD_LEVEL
    on_corrupt: OnCorrupt = OnCorrupt.FAIL
    accept: frozenset[Accept] = frozenset()
    partition_by: PartitionBy = BY_TOPIC_AND_DAY
    body_schema: BodySchema | None = None
    on_unfit: OnUnfit = OnUnfit.NULL
    dedup_window_ms: int | None = None
    target_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not LEAST_FILE_BYTES <= self.target_file_bytes <= MOST_FILE_BYTES:
            raise Invalid(
                f"target_file_bytes: expected {LEAST_FILE_BYTES} to {MOST_FILE_BYTES}, found "
                f"{self.target_file_bytes}"
            )
        if not 1 <= self.zstd_level <= 22:
            raise Invalid(f"zstd_level: expected 1 to 22, found {self.zstd_level}")
        if self.dedup_window_ms is not None and not 1 <= self.dedup_window_ms <= _MOST_WINDOW_MS:
            raise Invalid(
                f"dedup_window_ms: expected 1 to {_MOST_WINDOW_MS}, found {self.dedup_window_ms}"
            )
        if self.selection.tags is not None or self.selection.keys is not None:
            raise Invalid("an export is of whole queues: it takes no tags and no keys")
        if self.format is Format.ICEBERG:
            if self.catalog is None or self.table is None:
                raise Invalid("iceberg needs a catalog and a table (namespace.name)")
        elif self.to is None or self.catalog is not None or self.table is not None:
            raise Invalid(f"{self.format} needs a folder to write to, and no catalog or table")

    def require_topics(self, catalogue: TierCatalogue) -> None:
        """Raise Invalid for a name or shell pattern that no topic of a tier matches: a target would
        be made of a misspelt one, and refuse the right one."""
        require_topics(catalogue, self.topics)

    @property
    def message_columns(self) -> tuple[str, ...]:
        """Columns of the target that are those of messages. Raises Invalid for unknown ones."""
        names = list(choose_columns(self.columns))
        if self.properties and "properties" not in names:
            names.append("properties")
        needed = self.partition_by.needed_columns
        return (*(name for name in needed if name not in names), *names)

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Columns of the target by name, in order. Raises Invalid for unknown ones."""
        bodies = {} if self.body_schema is None else self.body_schema.types
        return {name: TYPES[name] for name in self.message_columns} | bodies

    @property
    def column_names(self) -> tuple[str, ...]:
        """Columns of the target. Raises Invalid for unknown ones."""
        return tuple(self.types)

    def describe_form(self) -> dict[str, object]:
        """Return as JSON how the target is made, where that is not the default."""
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
        """The target in messages and reports."""
        if self.format is Format.ICEBERG:
            return f"{self.catalog}:{self.table}"
        return show_url(self.to or "")

    def identity(self) -> dict[str, object]:
        """Return all that tells this export from another one, for a journal; no secrets."""
        chosen_ = self.selection
        return {
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
            "on_corrupt": self.on_corrupt.value,
            "accept": sorted(self.accept),
            **self.describe_form(),
            **({} if self.on_unfit is OnUnfit.NULL else {"on_unfit": self.on_unfit.value}),
        }

    def describe_selection(self) -> dict[str, object]:
        """Return as JSON which queues are chosen."""
        chosen_ = self.selection
        return {
            "topics": None if chosen_.topics is None else sorted(chosen_.topics),
            "topic_pattern": chosen_.topic_pattern,
            "brokers": None if chosen_.brokers is None else sorted(chosen_.brokers),
            "queue_ids": None if chosen_.queue_ids is None else sorted(chosen_.queue_ids),
        }


def select_queues(
    topics: Sequence[str],
    queue_ids: Sequence[int],
    from_offset: int | None,
    until_offset: int | None,
    since_ms: int | None,
    until_ms: int | None,
) -> Selection:
    """Select the queues of some topics (of all topics without). Raises Invalid for times in the
    wrong order."""
    require_order(since_ms, until_ms)
    names, pattern = split_topics(topics)
    return Selection(
        topics=names,
        topic_pattern=pattern,
        queue_ids=tuple(queue_ids) or None,
        from_offset=from_offset,
        until_offset=until_offset,
        since_ms=since_ms,
        until_ms=until_ms,
    )
