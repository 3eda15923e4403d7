"""What a page says: each section is a chart and the table that it is drawn from, the largest
first."""

from __future__ import annotations

from collections.abc import Sequence
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
"""Bars of a chart, which is to be seen at once."""
_TOPICS = 200
_QUEUES = 100
_TOP_VALUES = 5
_STORED = ("commit_log_bytes", "consume_queue_bytes", "index_bytes")
_ENOUGH_TRAFFIC_S = 86_400.0
"""From less than a day of messages nobody knows what a month is like."""


class Section(NamedTuple):
    """name: of its anchor. warning: empty where there is none. more: what is in the Parquet file
    alone."""

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
    """Choose the figures of the whole tier that one wants to know first."""
    stored = sum(_number(totals, kind) for kind in _STORED)
    tiles = [
        Tile("messages", count(totals["messages"]).text),
        Tile("stored", human_size(round(stored))),
        Tile(_plural(totals["topics"], "topic"), count(totals["topics"]).text),
        Tile(_plural(totals["queues"], "queue"), count(totals["queues"]).text),
        Tile(place, count(totals["objects"]).text),
        Tile("mean size of a message", size(totals["record_bytes_mean"]).text),
        Tile(
            "oldest message (UTC)",
            time(totals["min_store_timestamp"]).text.removesuffix(" UTC"),
        ),
        Tile(
            "newest message (UTC)",
            time(totals["max_store_timestamp"]).text.removesuffix(" UTC"),
        ),
    ]
    if totals["holes"]:
        tiles.append(Tile("gaps in queues", count(totals["holes"]).text))
    if prices is not None:
        tiles.append(Tile("a month of keeping it", dollars(totals["storage_usd_month"]).text))
    return tiles


def make_sections(
    summary: Summary, keys_percent: int, prices: Prices | None, place: str
) -> list[Section]:
    """Make all sections, in the order of the page. prices: None where nobody pays by the request.
    place: `files` or `objects`."""
    largest = sorted(summary.topics, key=lambda row: -sum(_number(row, kind) for kind in _STORED))
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


def _sizes(topics: Sequence[Row]) -> Section:
    drawn, note = _first(topics, "topics")
    values = [[_number(row, kind) for kind in _STORED] for row in drawn]
    bars = stack(_names(drawn), values, [human_size(round(sum(row))) for row in values])
    return Section(
        "sizes",
        "Bytes by topic",
        "What each topic takes: its messages, the queues that lead to them, and its part of the "
        "key index. Index files are one for "
        "all topics of a broker: each topic is given the part that its keys are of all keys.",
        Chart(bars, ("messages", "queues", "key index"), note),
        ("Topic", "Queues", "Messages", "All bytes", "Of messages", "Of queues", "Of key index"),
        [
            [
                text(row["topic"]),
                count(row["queues"]),
                count(row["messages"]),
                size(sum(_number(row, kind) for kind in _STORED)),
                *(size(row[kind]) for kind in _STORED),
            ]
            for row in topics[:_TOPICS]
        ],
        more=_tell_rest(topics, _TOPICS, "topics"),
    )


def _records(topics: Sequence[Row]) -> Section:
    found = [row for row in topics if row["messages"]]
    drawn, note = _first(found, "topics")
    columns = ("min", "p50", "p99", "max")
    values = [tuple(_number(row, f"record_bytes_{name}") for name in columns) for row in drawn]
    texts = [f"half under {size(row['record_bytes_p50']).text}" for row in drawn]
    bars = ranges(_names(drawn), [(a, b, c, d) for a, b, c, d in values], texts)
    heads = ("mean", "min", *(name for name, _ in QUANTILES), "max")
    titles = ("Mean", "Smallest", "Half are under", "90 % under", "99 % under", "Largest")
    return Section(
        "messages",
        "How large messages are",
        "As stored, with header and properties, from the smallest to the largest; the scale is "
        "one of tenfold steps. Mean, smallest "
        "and largest are exact, the others to 1/64.",
        Chart(bars, ("99 of 100", "the largest", "half are smaller"), note),
        ("Topic", *titles),
        [
            [text(row["topic"]), *(size(row[f"record_bytes_{head}"]) for head in heads)]
            for row in topics[:_TOPICS]
        ],
        more=_tell_rest(topics, _TOPICS, "topics"),
        is_range=True,
    )


def _ages(summary: Summary) -> Section:
    messages = dict.fromkeys(AGE_NAMES, 0.0)
    stored = dict.fromkeys(AGE_NAMES, 0.0)
    for row in summary.ages:
        messages[str(row["age"])] += _number(row, "messages")
        stored[str(row["age"])] += _number(row, "record_bytes")
    shown = [name for name in AGE_NAMES if name != "unknown" or messages[name]]
    bars = stack(
        shown,
        [[stored[name]] for name in shown],
        [human_size(round(stored[name])) if stored[name] else NOTHING for name in shown],
    )
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
    titles = {
        "KEYS": ("Keys", "What messages are found by, key by key: how uneven they are."),
        "UNIQ_KEY": (
            "Message ids",
            "Ids of producers (UNIQ_KEY). One that came more often was sent again, or is none.",
        ),
        "TAGS": ("Tags", "What consumers filter by."),
    }
    of_topic: dict[str, list[Row]] = {}
    for row in summary.values:
        # An id that came once is as it should be.
        if row["kind"] == kind and (kind != "UNIQ_KEY" or _number(row, "count") > 1):
            of_topic.setdefault(str(row["topic"]), []).append(row)
    found = [row for row in topics if str(row["topic"]) in of_topic]
    drawn, note = _first(found, "topics")
    most = [_number(of_topic[str(row["topic"])][0], "share") for row in drawn]
    bars = stack(
        _names(drawn), [[part] for part in most], [share(part).text for part in most], whole=1
    )
    title, said = titles[kind]
    return Section(
        column,
        title,
        f"{said} The bars are the share of the most frequent one.",
        Chart(bars, (), note) if bars else None,
        (
            "Topic",
            "Values",
            "Distinct, about",
            "Share of the most frequent",
            "The most frequent, with at least what share",
        ),
        [
            [
                text(row["topic"]),
                count(row[f"{column}_values"]),
                count(row[f"{column}_distinct"]),
                share(of_topic[str(row["topic"])][0]["share"]),
                text(
                    "; ".join(
                        f"{value['value']} ({share(value['share']).text})"
                        for value in of_topic[str(row["topic"])][:_TOP_VALUES]
                    )
                ),
            ]
            for row in found[:_TOPICS]
        ],
        more=_tell_rest(found, _TOPICS, "topics"),
    )


def _queues(summary: Summary, place: str) -> Section:
    queues = sorted(summary.queues, key=lambda row: -_number(row, "objects"))
    drawn, note = _first(queues, "queues")
    bars = stack(
        [f"{row['topic']}/{row['queue_id']}" for row in drawn],
        [[_number(row, "objects")] for row in drawn],
        [count(row["objects"]).text for row in drawn],
    )
    return Section(
        "queues",
        f"Queues, and their {place}",
        f"Queues of most {place} first. Many small {place} make reading slow and dear: merging "
        "has not come to them yet, or they are "
        "of slow queues. A gap is a range of queue offsets that the tier does not have.",
        Chart(bars, (), note) if bars else None,
        (
            "Queue",
            "First offset",
            "Next offset",
            "Messages",
            "Segments",
            place.capitalize(),
            "Bytes of each",
            "Gaps",
            "Offsets in gaps",
            "Oldest message",
            "Newest message",
        ),
        [
            [
                text(f"{row['broker']}/{row['topic']}/{row['queue_id']}"),
                *(
                    count(row[name])
                    for name in ("first_offset", "next_offset", "messages", "segments", "objects")
                ),
                size(row["bytes_an_object"]),
                count(row["holes"]),
                count(row["hole_offsets"]),
                time(row["min_store_timestamp"]),
                time(row["max_store_timestamp"]),
            ]
            for row in queues[:_QUEUES]
        ],
        more=_tell_rest(queues, _QUEUES, "queues"),
    )


def _costs(topics: Sequence[Row], summary: Summary, prices: Prices) -> Section:
    kinds = ("storage_usd_month", "write_usd_month", "read_usd")
    drawn, note = _first(topics, "topics")
    values = [[_number(row, kind) for kind in kinds] for row in drawn]
    bars = stack(_names(drawn), values, [show_dollars(sum(row)) for row in values])
    brokers = _number(summary.totals, "brokers_write_usd_month")
    return Section(
        "cost",
        "What it costs",
        f"In US dollars, at ${prices.write:g} a million PUT, COPY and POST, ${prices.list:g} "
        f"LIST, ${prices.read:g} GET, "
        f"${prices.delete:g} DELETE, ${prices.transfer:g} a GiB read and ${prices.storage:g} a "
        "GiB-month. Writing is a month of "
        "uploads and merges in which messages come as they came. Beside it the brokers' own "
        "requests, whatever they write: "
        f"{show_dollars(brokers)} a month.",
        Chart(bars, ("keeping, a month", "writing, a month", "reading all, once"), note),
        (
            "Topic",
            "Keeping, a month",
            "Writing, a month",
            "Reading all, once",
            "Requests to write, a month",
            "Requests to read",
            "Messages came within",
        ),
        [
            [
                text(row["topic"]),
                *(dollars(row[kind]) for kind in kinds),
                count(row["write_requests_month"]),
                count(row["read_requests"]),
                span(_traffic_seconds(row)),
            ]
            for row in topics[:_TOPICS]
        ],
        more=_tell_rest(topics, _TOPICS, "topics"),
        warning=_warn_of_little(topics),
    )


def _warn_of_little(topics: Sequence[Row]) -> str:
    """Say which figures of writing rest on less than a day of messages."""
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
        f"Writing is told from little here. {of_whom} had messages of less than a day (the "
        "longest of these of "
        f"{show_span(max(spans))}): what a month costs may be quite another figure. The last "
        "column says it of each."
    )


def _traffic_seconds(row: Row) -> float | None:
    """The time between the first and the last message of a topic."""
    first, last = row["min_store_timestamp"], row["max_store_timestamp"]
    if not isinstance(first, int) or not isinstance(last, int):
        return None
    return max(last - first, 0) / 1000


def _first(rows: Sequence[Row], what: str) -> tuple[Sequence[Row], str]:
    """The rows that are drawn, and what is said of the others."""
    left = len(rows) - _DRAWN
    return rows[:_DRAWN], f"{left:,} more {what} are in the table." if left > 0 else ""


def _tell_rest(rows: Sequence[Row], shown: int, what: str) -> str:
    left = len(rows) - shown
    return f"{left:,} more {what} are in {what}.parquet." if left > 0 else ""


def _names(rows: Sequence[Row]) -> list[str]:
    return [str(row["topic"]) for row in rows]


def _number(row: Row, name: str) -> float:
    value = row[name]
    return float(value) if isinstance(value, int | float) else 0.0


def _plural(number: object, word: str) -> str:
    return word if number == 1 else f"{word}s"
