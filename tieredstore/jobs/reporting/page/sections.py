"""Sections of a page: each has a chart and its table, with the largest rows first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tieredstore.contracts.usage import Prices
from tieredstore.jobs.reporting.facts import AGE_NAMES, KINDS
from tieredstore.jobs.reporting.page.cells import (
    NOTHING,
    Cell,
    count,
    dollars,
    share,
    show_dollars,
    show_span,
    size,
    span,
    text,
    time,
)
from tieredstore.jobs.reporting.page.charts import Chart, ranges, stack
from tieredstore.jobs.reporting.summary import QUANTILES, Row, Summary
from tieredstore.scan.human import human_size

_DRAWN = 12
"""Maximum number of bars of a chart, so that all bars are visible together."""
_TOPICS = 200
_QUEUES = 100
_TOP_VALUES = 5
_STORED = ("commit_log_bytes", "consume_queue_bytes", "index_bytes")
_COSTS = ("storage_usd_month", "write_usd_month", "read_usd")
_KIND_TITLES = {
    "KEYS": ("Keys", "The keys by which messages are found, and how uneven they are."),
    "UNIQ_KEY": (
        "Message ids",
        "Ids of producers (UNIQ_KEY). One that came more often was sent again, or is none.",
    ),
    "TAGS": ("Tags", "The tags by which consumers filter."),
}
_ENOUGH_TRAFFIC_S = 86_400.0
"""Minimum time between the first and last message (one day, in seconds) for which a monthly
estimate is shown without a warning."""


class Section(NamedTuple):
    """Section of the page. `name`: HTML anchor. `more`: note about rows that are only in the
    Parquet file."""

    name: str
    title: str
    text: str
    chart: Chart | None
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    more: str = ""
    warning: str = ""
    is_range: bool = False


class Tile(NamedTuple):
    name: str
    value: str


def make_tiles(totals: Row, prices: Prices | None, place: str) -> list[Tile]:
    """Choose the main figures of the whole tier."""
    oldest, newest = (
        time(totals[f"{name}_store_timestamp"]).text.removesuffix(" UTC") for name in ("min", "max")
    )
    tiles = [
        Tile("messages", count(totals["messages"]).text),
        Tile("stored", human_size(round(_sum(totals, _STORED)))),
        Tile(_plural(totals["topics"], "topic"), count(totals["topics"]).text),
        Tile(_plural(totals["queues"], "queue"), count(totals["queues"]).text),
        Tile(place, count(totals["objects"]).text),
        Tile("mean size of a message", size(totals["record_bytes_mean"]).text),
        Tile("oldest message (UTC)", oldest),
        Tile("newest message (UTC)", newest),
    ]
    if totals["holes"]:
        tiles.append(Tile("gaps in queues", count(totals["holes"]).text))
    if prices is not None:
        tiles.append(Tile("a month of keeping it", dollars(totals["storage_usd_month"]).text))
    return tiles


def make_sections(
    summary: Summary, keys_percent: int, prices: Prices | None, place: str
) -> list[Section]:
    """Build all sections in order. `prices`: None if the tier costs nothing. `place`: `files` or
    `objects`."""
    topics = ({**row, "stored": _sum(row, _STORED)} for row in summary.topics)
    largest = sorted(topics, key=lambda row: -_number(row, "stored"))
    sections = [
        _sizes(largest),
        _records(largest),
        _ages(summary),
        *(_values(summary, largest, kind) for kind in KINDS if keys_percent),
        _queues(summary, place),
    ]
    if prices is not None:
        sections.append(_costs(largest, summary, prices))
    return sections


def _table(
    columns: Mapping[str, tuple[Callable[[object], Cell], str]],
    rows: Sequence[Row],
    most: int = _TOPICS,
    what: str = "topics",
) -> tuple[tuple[str, ...], list[list[Cell]], str]:
    """Return the column titles, the cells of the first rows, and a note about the rest. `columns`:
    for each title, a function that makes a cell, and the key of its value in a row."""
    cells = [[show(row[name]) for show, name in columns.values()] for row in rows[:most]]
    left = len(rows) - most
    return tuple(columns), cells, f"{left:,} more {what} are in {what}.parquet." if left > 0 else ""


def _sizes(topics: Sequence[Row]) -> Section:
    drawn, note = _first(topics, "topics")
    values = [[_number(row, kind) for kind in _STORED] for row in drawn]
    bars = stack(_names(drawn), values, [human_size(round(sum(row))) for row in values])
    columns = {
        "Topic": (text, "topic"),
        "Queues": (count, "queues"),
        "Messages": (count, "messages"),
        "All bytes": (size, "stored"),
        "Of messages": (size, "commit_log_bytes"),
        "Of queues": (size, "consume_queue_bytes"),
        "Of key index": (size, "index_bytes"),
    }
    return Section(
        "sizes",
        "Bytes by topic",
        "The bytes of each topic: its messages, its consume queues, and its part of the key index. "
        "A broker has one index for all its topics. Each topic is given the part that its keys are "
        "of all keys.",
        Chart(bars, ("messages", "queues", "key index"), note),
        *_table(columns, topics),
    )


def _records(topics: Sequence[Row]) -> Section:
    drawn, note = _first([row for row in topics if row["messages"]], "topics")
    names = ("min", "p50", "p99", "max")
    values = [tuple(_number(row, f"record_bytes_{name}") for name in names) for row in drawn]
    texts = [f"half under {size(row['record_bytes_p50']).text}" for row in drawn]
    bars = ranges(_names(drawn), [(a, b, c, d) for a, b, c, d in values], texts)
    heads = ("mean", "min", *(name for name, _ in QUANTILES), "max")
    titles = ("Mean", "Smallest", "Half are under", "90 % under", "99 % under", "Largest")
    sizes = {
        title: (size, f"record_bytes_{head}") for title, head in zip(titles, heads, strict=True)
    }
    return Section(
        "messages",
        "How large messages are",
        "As stored, with header and properties, from the smallest to the largest. The scale is "
        "logarithmic. Mean, smallest and largest are exact, the others to 1/64.",
        Chart(bars, ("99 of 100", "the largest", "half are smaller"), note),
        *_table({"Topic": (text, "topic"), **sizes}, topics),
        is_range=True,
    )


def _ages(summary: Summary) -> Section:
    messages, stored = dict.fromkeys(AGE_NAMES, 0.0), dict.fromkeys(AGE_NAMES, 0.0)
    for row in summary.ages:
        messages[str(row["age"])] += _number(row, "messages")
        stored[str(row["age"])] += _number(row, "record_bytes")
    shown = [name for name in AGE_NAMES if name != "unknown" or messages[name]]
    texts = [human_size(round(stored[name])) if stored[name] else NOTHING for name in shown]
    bars = stack(shown, [[stored[name]] for name in shown], texts)
    order = {name: number for number, name in enumerate(AGE_NAMES)}
    return Section(
        "ages",
        "How old messages are",
        "By the time since they were stored, which is taken to rise within a queue. By topic: "
        "ages.parquet.",
        Chart(bars) if any(stored.values()) else None,
        ("Age", "Messages", "Bytes"),
        [
            [Cell(name, order[name], is_number=False), count(messages[name]), size(stored[name])]
            for name in shown
        ],
    )


def _values(summary: Summary, topics: Sequence[Row], kind: str) -> Section:
    column = kind.lower()
    of_topic: dict[object, list[Row]] = {}
    for row in summary.values:
        # An id that occurs once is normal.
        if row["kind"] == kind and (kind != "UNIQ_KEY" or _number(row, "count") > 1):
            of_topic.setdefault(row["topic"], []).append(row)
    found = [
        {**row, "share": values[0]["share"], "frequent": _describe_values(values)}
        for row in topics
        if (values := of_topic.get(row["topic"])) is not None
    ]
    drawn, note = _first(found, "topics")
    most = [[_number(row, "share")] for row in drawn]
    bars = stack(_names(drawn), most, [share(part).text for [part] in most], whole=1)
    columns = {
        "Topic": (text, "topic"),
        "Values": (count, f"{column}_values"),
        "Distinct, about": (count, f"{column}_distinct"),
        "Share of the most frequent": (share, "share"),
        "The most frequent, with at least what share": (text, "frequent"),
    }
    title, meaning = _KIND_TITLES[kind]
    return Section(
        column,
        title,
        f"{meaning} The bars are the share of the most frequent one.",
        Chart(bars, (), note) if bars else None,
        *_table(columns, found),
    )


def _describe_values(values: Sequence[Row]) -> str:
    found = (f"{row['value']} ({share(row['share']).text})" for row in values[:_TOP_VALUES])
    return "; ".join(found)


def _queues(summary: Summary, place: str) -> Section:
    queues = [
        {**row, "queue": f"{row['broker']}/{row['topic']}/{row['queue_id']}"}
        for row in sorted(summary.queues, key=lambda row: -_number(row, "objects"))
    ]
    drawn, note = _first(queues, "queues")
    labels = [f"{row['topic']}/{row['queue_id']}" for row in drawn]
    objects = [[_number(row, "objects")] for row in drawn]
    bars = stack(labels, objects, [count(row["objects"]).text for row in drawn])
    columns = {
        "Queue": (text, "queue"),
        "First offset": (count, "first_offset"),
        "Next offset": (count, "next_offset"),
        "Messages": (count, "messages"),
        "Segments": (count, "segments"),
        place.capitalize(): (count, "objects"),
        "Bytes of each": (size, "bytes_an_object"),
        "Gaps": (count, "holes"),
        "Offsets in gaps": (count, "hole_offsets"),
        "Oldest message": (time, "min_store_timestamp"),
        "Newest message": (time, "max_store_timestamp"),
    }
    return Section(
        "queues",
        f"Queues, and their {place}",
        f"Queues of most {place} first. Many small {place} make reading slow and expensive. They "
        "are not merged yet, or belong to slow queues. A gap is a range of queue offsets that the "
        "tier does not have.",
        Chart(bars, (), note) if bars else None,
        *_table(columns, queues, _QUEUES, "queues"),
    )


def _costs(topics: Sequence[Row], summary: Summary, prices: Prices) -> Section:
    drawn, note = _first(topics, "topics")
    values = [[_number(row, kind) for kind in _COSTS] for row in drawn]
    bars = stack(_names(drawn), values, [show_dollars(sum(row)) for row in values])
    brokers = _number(summary.totals, "brokers_write_usd_month")
    columns = {
        "Topic": (text, "topic"),
        "Keeping, a month": (dollars, "storage_usd_month"),
        "Writing, a month": (dollars, "write_usd_month"),
        "Reading all, once": (dollars, "read_usd"),
        "Requests to write, a month": (count, "write_requests_month"),
        "Requests to read": (count, "read_requests"),
        "Messages came within": (span, "traffic_s"),
    }
    rows = [{**row, "traffic_s": _traffic_seconds(row)} for row in topics]
    return Section(
        "cost",
        "What it costs",
        f"In US dollars, at ${prices.write:g} a million PUT, COPY and POST, ${prices.list:g} "
        f"LIST, ${prices.read:g} GET, ${prices.delete:g} DELETE, ${prices.transfer:g} a GiB read "
        f"and ${prices.storage:g} a GiB-month. Writing is a month of uploads and merges at the "
        "past rate of messages. The brokers' own requests come in addition, whatever they write: "
        f"{show_dollars(brokers)} a month.",
        Chart(bars, ("keeping, a month", "writing, a month", "reading all, once"), note),
        *_table(columns, rows),
        warning=_warn_of_little(topics),
    )


def _warn_of_little(topics: Sequence[Row]) -> str:
    """Return a warning about the estimates that are based on less than a day of messages."""
    spans = [
        seconds
        for row in topics
        if (seconds := _traffic_seconds(row)) is not None and seconds < _ENOUGH_TRAFFIC_S
    ]
    if not spans:
        return ""
    of_whom = "All topics" if len(spans) == len(topics) else f"{len(spans):,} topics"
    if len(topics) == 1:
        of_whom = "The topic"
    return (
        f"The cost of writing is a rough estimate. {of_whom} had messages of less than a day (at "
        f"most {show_span(max(spans))}). The last column shows the time of each."
    )


def _traffic_seconds(row: Row) -> float | None:
    """Return the time between the first and the last message of a topic."""
    first, last = row["min_store_timestamp"], row["max_store_timestamp"]
    if not isinstance(first, int) or not isinstance(last, int):
        return None
    return max(last - first, 0) / 1000


def _first(rows: Sequence[Row], what: str) -> tuple[Sequence[Row], str]:
    """Return the rows to draw, and a note about the other rows."""
    left = len(rows) - _DRAWN
    return rows[:_DRAWN], f"{left:,} more {what} are in the table." if left > 0 else ""


def _names(rows: Sequence[Row]) -> list[str]:
    return [str(row["topic"]) for row in rows]


def _sum(row: Row, names: Sequence[str]) -> float:
    return sum(_number(row, name) for name in names)


def _number(row: Row, name: str) -> float:
    value = row[name]
    return float(value) if isinstance(value, int | float) else 0.0


def _plural(number: object, word: str) -> str:
    return word if number == 1 else f"{word}s"
