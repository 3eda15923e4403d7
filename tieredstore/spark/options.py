"""Options of the data source `rocketmq_tiered`, named like the options of Kafka's source."""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.errors import Invalid
from tieredstore.jobs.run import TASK_BYTES
from tieredstore.message.compression import DEFAULT_BODY_LIMIT_BYTES
from tieredstore.scan.arguments import require_choice, take_tags
from tieredstore.scan.arrow.schema import DEFAULT_COLUMNS, choose_columns
from tieredstore.scan.findings import OnDamage
from tieredstore.scan.location import TierLocation, locate
from tieredstore.scan.read.options import ReadOptions
from tieredstore.scan.time_search.modes import SearchTimes, parse_search_times
from tieredstore.scan.times import parse_time, parse_zone
from tieredstore.spark.offsets import (
    EARLIEST,
    LATEST,
    QueueKey,
    parse_assigned,
    parse_offsets,
    show_queue,
)
from tieredstore.spark.stream.checkpoint import parse_starting_offsets
from tieredstore.tier_url import file_url
from tieredstore.timestamps import UNITS_MS

_log = logging.getLogger(__name__)
T = TypeVar("T")

NAMES = (
    "path", "cluster", "broker", "state", "config", "properties",
    "subscribe", "subscribePattern", "assign",
    "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "timeZone",
    "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "keys", "tags",
    "columns", "includeProperties", "pushDownFilters",
    "minPartitions", "maxPartitionBytes", "maxRecordsPerPartition", "batchBytes",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "listInterval",
    "failOnDataLoss", "onDamage", "corruptReportPath", "checkBodies", "verifyRecords",
    "searchTimes", "bodyLimitBytes",
)  # fmt: skip
BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
"""Names of options that exist only for streams of Spark 4.2 and later."""
LISTED_AGAIN = "listInterval"
"""Name of an option that exists only for streams."""
LIST_INTERVAL_MS = 10_000
TRIGGER_DELAY_MS = 15 * 60_000
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_DURATION = re.compile(r"(\d+)\s*(ms|s|min|m|h|d)?", re.IGNORECASE | re.ASCII)
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_TABLE = (
    "CREATE TABLE hands no options to a Python data source: use a temporary view: "
    "CREATE TEMPORARY VIEW v USING rocketmq_tiered OPTIONS (path '…', subscribe '…')"
)
_NO_PATH = f"no path: expected .load('file:///tier') or .option('path', …). {_TABLE}"


@dataclass(frozen=True, slots=True)
class Bound:
    """Start or end of a read. For each queue it is the value in `by_queue`, or else `default`
    (EARLIEST, LATEST or an offset). A time in `times_by_queue` or `time_ms` (epoch ms) takes
    precedence, and means the first message that was stored at or after it."""

    default: int
    by_queue: Mapping[QueueKey, int]
    time_ms: int | None = None
    times_by_queue: Mapping[QueueKey, int] = field(default_factory=dict)

    def of(self, key: QueueKey) -> int:
        return self.by_queue.get(key, self.default)

    def time_of(self, key: QueueKey) -> int | None:
        """Return the store time (epoch ms) at which the read of a queue starts or ends, or None if
        the bound is an offset."""
        return self.times_by_queue.get(key, self.time_ms)

    @property
    def has_times(self) -> bool:
        """Return whether the bound of any queue is a time."""
        return self.time_ms is not None or bool(self.times_by_queue)

    @property
    def named(self) -> frozenset[QueueKey]:
        """Queues with an offset or time of their own."""
        return frozenset(self.by_queue) | frozenset(self.times_by_queue)


_BATCH_BYTES = 8 << 20
"""Maximum size of a batch in bytes. It is twice that of a scan outside of Spark, because larger
batches take less CPU time in Spark (measured)."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Checked options. Picklable. Bounds are None if not set."""

    url: str = field(repr=False)
    cluster: str | None
    broker: str | None
    state: str | None
    config: str | None
    properties: Mapping[str, str] = field(repr=False)
    topics: tuple[str, ...] | None
    topic_pattern: str | None
    assigned: frozenset[QueueKey] | None
    starting: Bound | None
    ending: Bound | None
    columns: tuple[str, ...] | None
    read: ReadOptions
    min_partitions: int
    max_partition_bytes: int
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    list_interval_ms: int
    fail_on_data_loss: bool
    skips_damage: bool
    corrupt_report_path: str | None
    push_down_filters: bool
    search_times: SearchTimes
    given: frozenset[str]

    @property
    def named_topics(self) -> frozenset[str] | None:
        """Topics that may be read, or None if a pattern selects them."""
        if self.assigned is not None:
            return frozenset(topic for topic, _, _ in self.assigned)
        return None if self.topics is None else frozenset(self.topics)

    def tier(self) -> TierLocation:
        """Return the location of the tier. Raises Invalid, Unavailable."""
        return locate(
            self.url,
            cluster=self.cluster,
            broker=self.broker,
            state=None if self.state is None else Path(self.state),
            config=None if self.config is None else Path(self.config),
            properties=self.properties,
        )


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse options by name, in any letter case. Warn of ignored options. Raises Invalid."""
    known = {name.lower(): name for name in NAMES}
    values = {known[key.lower()]: value for key, value in options.items() if key.lower() in known}
    given = frozenset(values)
    unknown = set(map(str.lower, options)) - set(known)
    if any(name == "location" or name.startswith("option.") for name in unknown):
        raise Invalid(_TABLE)
    _refuse_unknown(unknown)
    if "path" not in values:
        raise Invalid(_NO_PATH)
    chosen_by = [name for name in ("subscribe", "subscribePattern", "assign") if name in values]
    if len(chosen_by) != 1:
        found = " and ".join(chosen_by) or "none"
        raise Invalid(
            f"expected one of subscribe, subscribePattern and assign, found {found}; "
            "subscribePattern '.*' is all topics"
        )
    now_ms = SYSTEM_CLOCK.now_ms()
    get = _Getter(values)
    for name, several in (("tags", "`A || B`"), ("keys", '["a", "b"]')):
        text = values.get(name, "")
        if "," in text and not text.startswith("["):  # a separator in earlier versions
            _log.warning("%s: %r is one, with a comma in it. Several are %s", name, text, several)
    damage = require_choice("onDamage", OnDamage, values.get("onDamage", "fail").strip().lower())
    tags, keys = take_tags("tags", values.get("tags")), get("keys", _keys)
    most, least = get("maxOffsetsPerTrigger", _count), get("minOffsetsPerTrigger", _count)
    if most is not None and least is not None and least > most:
        raise Invalid(
            f"minOffsetsPerTrigger: expected at most maxOffsetsPerTrigger ({most}), found {least}"
        )
    delay_ms, interval_ms = get("maxTriggerDelay", _duration), get("listInterval", _duration)
    return SourceOptions(
        url=tier_url(values["path"]),
        cluster=values.get("cluster"),
        broker=values.get("broker"),
        state=values.get("state"),
        config=values.get("config"),
        properties=get("properties", _properties) or {},
        topics=get("subscribe", _names),
        topic_pattern=values.get("subscribePattern"),
        assigned=get("assign", lambda text, _: parse_assigned(text)),
        starting=_parse_bound(values, "starting", EARLIEST, now_ms),
        ending=_parse_bound(values, "ending", LATEST, now_ms),
        columns=_columns(get),
        read=ReadOptions(
            batch_bytes=get("batchBytes", _size) or _BATCH_BYTES,
            body_crcs=get("checkBodies", _boolean) is not False,
            body_limit_bytes=get("bodyLimitBytes", _size) or DEFAULT_BODY_LIMIT_BYTES,
            tags=tags,
            keys=keys,
            verify_records=get("verifyRecords", _boolean) is True,
        ),
        min_partitions=get("minPartitions", _count) or 1,
        max_partition_bytes=get("maxPartitionBytes", _size) or TASK_BYTES,
        max_records_per_partition=get("maxRecordsPerPartition", _count),
        max_offsets_per_trigger=most,
        max_bytes_per_trigger=get("maxBytesPerTrigger", _size),
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=TRIGGER_DELAY_MS if delay_ms is None else delay_ms,
        list_interval_ms=LIST_INTERVAL_MS if interval_ms is None else interval_ms,
        fail_on_data_loss=get("failOnDataLoss", _boolean) is not False,
        skips_damage=damage is OnDamage.SKIP,
        corrupt_report_path=values.get("corruptReportPath"),
        push_down_filters=get("pushDownFilters", _boolean) is True,
        search_times=get("searchTimes", parse_search_times) or SearchTimes.EXACT,
        given=given,
    )


def tier_url(path: str) -> str:
    """Convert a path of Spark's users to the URL of a tier: /dir (unchanged), file:/dir and
    s3a://bucket (percent-encoded, like all URLs)."""
    scheme, colon, rest = path.partition(":")
    if not _SCHEME.match(path):
        return file_url(path)
    if scheme.lower() in {"s3a", "s3n"}:
        return f"s3{colon}{rest}"
    if scheme.lower() == "file" and not rest.startswith("//"):
        return f"file://{rest}"
    return path


def warn_of_ignored_hadoop_settings(names: Iterable[str]) -> None:
    """Warn of S3A settings, which have no effect because the data source has its own S3 client."""
    ignored = sorted(name for name in names if "fs.s3a." in name or "fs.s3." in name)
    if ignored:
        _log.warning(
            "rocketmq_tiered reads S3 with a client of its own and ignores %s. Give endpoint and "
            "region in the path (s3://bucket/prefix?endpoint=…&region=…) and access keys by the "
            "environment of the executors or the option config",
            ", ".join(ignored),
        )


def refuse(options: SourceOptions, names: Iterable[str], why: str) -> None:
    """Raise Invalid if any of the given options is set."""
    for name in names:
        if name in options.given:
            raise Invalid(f"{name}: {why}")


def _refuse_unknown(names: set[str]) -> None:
    warn_of_ignored_hadoop_settings(names)
    by_lower = {name.lower(): name for name in NAMES}
    for name in sorted(names):
        if name.startswith(("fs.", "spark.")):
            continue
        close = difflib.get_close_matches(name, by_lower, n=2)
        hint = " or ".join(by_lower[one] for one in close)
        hint = f"did you mean {hint}?" if hint else f"there are {', '.join(NAMES)}"
        raise Invalid(f"no option {name!r}; {hint}")


class _Getter:
    """Function that returns the parsed value of an option, or None if the option is not set."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __call__(self, name: str, parse: Callable[[str, str], T]) -> T | None:
        text = self._values.get(name)
        return None if text is None else parse(text, name)


def _columns(get: _Getter) -> tuple[str, ...] | None:
    """Return the columns that the options name, or None for the default columns (all but
    properties)."""
    names = get("columns", _names)
    if not get("includeProperties", _boolean):
        return None if names is None else choose_columns(names)
    names = choose_columns(names or DEFAULT_COLUMNS)
    return names if "properties" in names else (*names, "properties")


def _parse_bound(values: Mapping[str, str], which: str, default: int, now_ms: int) -> Bound | None:
    """Parse a bound like Kafka's data source. A timestamp takes precedence over times by queue, and
    these over offsets."""
    time, offsets = values.get(f"{which}Timestamp"), values.get(f"{which}Offsets")
    if time is not None:
        zone = parse_zone(values.get("timeZone", "UTC"))
        return Bound(default, {}, parse_time(time, now_ms, zone))
    option, times = f"{which}OffsetsByTimestamp", dict[QueueKey, int]()
    if option in values:
        times = parse_offsets(values[option], option)
        for key, time_ms in times.items():
            if time_ms < 0:
                raise Invalid(
                    f"{option}: {show_queue(key)}: expected epoch milliseconds, found {time_ms}"
                )
    elif offsets is None:
        return None
    text = (offsets or "{}").strip().lower()
    if (place := {"earliest": EARLIEST, "latest": LATEST}.get(text)) is not None:
        return Bound(place, {}, times_by_queue=times)
    by_queue = parse_starting_offsets(offsets, f"{which}Offsets") if offsets is not None else {}
    return Bound(default, by_queue, times_by_queue=times)


def _names(text: str, name: str) -> tuple[str, ...]:
    found = tuple(part for part in (piece.strip() for piece in text.split(",")) if part)
    if not found:
        raise Invalid(f"{name}: expected names with commas between them, found {text!r}")
    return found


def _keys(text: str, name: str) -> tuple[str, ...]:
    """Return one key, which may contain commas, or several keys from a JSON list."""
    if text.startswith("["):
        with suppress(ValueError):
            found = json.loads(text)
            if found and all(isinstance(one, str) for one in found):
                return tuple(found)
        raise Invalid(f'{name}: expected a key, or keys as JSON such as ["a", "b"], found {text!r}')
    if not text:
        raise Invalid(f"{name}: expected a key, found an empty text")
    return (text,)


def _boolean(text: str, name: str) -> bool:
    if text.strip().lower() not in {"true", "false"}:
        raise Invalid(f"{name}: expected true or false, found {text!r}")
    return text.strip().lower() == "true"


def _count(text: str, name: str) -> int:
    if not (text.strip().isascii() and text.strip().isdecimal() and int(text)):
        raise Invalid(f"{name}: expected a number above 0, found {text!r}")
    return int(text)


def _size(text: str, name: str) -> int:
    """Parse bytes, also in the form of Spark's settings: 128m, 1g, 64KiB."""
    found = _SIZE.fullmatch(text.strip())
    size = 0 if found is None else int(found[1]) << (10 * " kmgt".index(found[2].lower() or " "))
    if not size:
        raise Invalid(f"{name}: expected bytes above 0, such as 134217728 or 128m, found {text!r}")
    return size


def _duration(text: str, name: str) -> int:
    """Parse milliseconds: 500, or in the form of Spark's settings: 500ms, 10s, 15m, 1h."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise Invalid(f"{name}: expected a duration such as 10s, 500ms or 15m, found {text!r}")
    return int(found[1]) * UNITS_MS[(found[2] or "ms").lower()]


def _properties(text: str, name: str) -> dict[str, str]:
    """Parse properties from JSON. Option names lose their letter case, but the keys of broker.conf
    are case-sensitive."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        # the value may hold a secret
        raise Invalid(f'{name}: expected JSON such as {{"tieredStorePosixFsyncEnable": "false"}}')
    return found
