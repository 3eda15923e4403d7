"""A report as one HTML page: no scripts, nothing from elsewhere, a table beside each plot."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

import jinja2

from tieredstore.contracts.usage import Prices
from tieredstore.jobs.reporting.facts import AGE_NAMES, KINDS, Facts
from tieredstore.jobs.reporting.plots import bars
from tieredstore.jobs.reporting.sketches import DISTINCT_HASHES, HEAVY_HITTERS
from tieredstore.jobs.reporting.summary import QUANTILES, Row, Summary

_PLOTTED = 20
_TOPICS = 200
_QUEUES = 100
_TOP_VALUES = 5
_MIB = 1 << 20


class Section(NamedTuple):
    """svg: empty where there is nothing to draw. rows: texts; of the columns from `numbers` on,
    they are numbers. more: what is in the Parquet file alone."""

    title: str
    text: str
    svg: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: int = 1
    more: str = ""


def page(
    summary: Summary, tier: str, now_ms: int, keys_percent: int, prices: Prices, facts: Facts
) -> bytes:
    """Return the page in UTF-8."""
    largest = sorted(summary.topics, key=lambda row: -_number(row, "commit_log_bytes"))
    sections = [
        _sizes(largest),
        _records(largest),
        _ages(summary),
        *(_values(summary, largest, kind) for kind in KINDS if keys_percent),
        _files(summary),
        _costs(largest, summary, prices),
    ]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    text = environment.from_string(template).render(
        tier=_text(tier),
        time=_time(now_ms),
        keys_percent=keys_percent,
        totals=_totals(summary.totals),
        sections=[
            section._replace(rows=[[_text(cell) for cell in row] for row in section.rows])
            for section in sections
        ],
        damage=list(map(_text, facts.texts)),
        findings=facts.findings,
        hitters=HEAVY_HITTERS,
        hashes=DISTINCT_HASHES,
    )
    return text.encode()


def _sizes(topics: Sequence[Row]) -> Section:
    kinds = ("commit_log_bytes", "consume_queue_bytes", "index_bytes")
    names = ("commit log", "consume queue", "index")
    drawn = topics[:_PLOTTED]
    series = {
        name: [_number(row, kind) / _MIB for row in drawn]
        for name, kind in zip(names, kinds, strict=True)
    }
    rows = [
        [
            _name(row),
            _count(row["queues"]),
            _count(row["messages"]),
            *(_mib(row[kind]) for kind in kinds),
        ]
        for row in topics[:_TOPICS]
    ]
    return Section(
        "Sizes by topic",
        "Index files are one for all topics of a broker: each topic is given the part that its "
        "keys are of all keys, or its messages where no records were read.",
        _draw_bars(drawn, series, "MiB"),
        ("topic", "queues", "messages", *(f"{name}, MiB" for name in names)),
        rows,
        more=_tell_rest(topics, _TOPICS, "topics"),
    )


def _records(topics: Sequence[Row]) -> Section:
    drawn = [row for row in topics if row["messages"]][:_PLOTTED]
    series = {
        name: [_number(row, f"record_bytes_{name}") for row in drawn] for name, _ in QUANTILES
    }
    columns = ("mean", "min", *(name for name, _ in QUANTILES), "max")
    rows = [
        [_name(row), *(_count(row[f"record_bytes_{column}"]) for column in columns)]
        for row in topics[:_TOPICS]
    ]
    return Section(
        "Sizes of records",
        "Bytes of a message as stored, header and properties included, as its consume queue unit "
        "says. Mean, min and max are exact, percentiles to 1/64.",
        _draw_bars(drawn, series, "bytes", stacked=False, is_log=True),
        ("topic", *columns),
        rows,
        more=_tell_rest(topics, _TOPICS, "topics"),
    )


def _ages(summary: Summary) -> Section:
    messages = dict.fromkeys(AGE_NAMES, 0.0)
    size = dict.fromkeys(AGE_NAMES, 0.0)
    for row in summary.ages:
        messages[str(row["age"])] += _number(row, "messages")
        size[str(row["age"])] += _number(row, "record_bytes")
    svg = ""
    if any(messages.values()):
        svg = bars(AGE_NAMES, {"bytes": [size[name] / _MIB for name in AGE_NAMES]}, "MiB")
    return Section(
        "Ages",
        "Messages by the time since they were stored. Store times are taken to rise within a "
        "queue: limits are found by binary search. By topic: ages.parquet.",
        svg,
        ("age", "messages", "records, MiB"),
        [[name, _count(messages[name]), _mib(size[name])] for name in AGE_NAMES],
    )


def _values(summary: Summary, topics: Sequence[Row], kind: str) -> Section:
    column = kind.lower()
    of_topic: dict[str, list[Row]] = {}
    for row in summary.values:
        if row["kind"] == kind:
            of_topic.setdefault(str(row["topic"]), []).append(row)
    found = [row for row in topics if row[f"{column}_values"]]
    drawn = [row for row in found if str(row["topic"]) in of_topic][:_PLOTTED]
    shares = [100 * _number(of_topic[str(row["topic"])][0], "share") for row in drawn]
    rows = [
        [
            _name(row),
            _count(row[f"{column}_values"]),
            _count(row[f"{column}_distinct"]),
            "; ".join(
                f"{value['value']} ({100 * _number(value, 'share'):.1f} %)"
                for value in of_topic.get(str(row["topic"]), [])[:_TOP_VALUES]
            ),
        ]
        for row in found[:_TOPICS]
    ]
    texts = {
        "KEYS": "Single keys of KEYS, as they are indexed: how uneven they are.",
        "UNIQ_KEY": "Ids that producers gave. One that is frequent was sent again, or is no id.",
        "TAGS": "Values of TAGS as a whole.",
    }
    return Section(
        kind,
        texts[kind],
        _draw_bars(drawn, {"share": shares}, f"{kind}: share of the most frequent value, %"),
        ("topic", "values", "distinct, about", "most frequent, and at least what share"),
        rows,
        more=_tell_rest(found, _TOPICS, "topics"),
    )


def _files(summary: Summary) -> Section:
    queues = sorted(summary.queues, key=lambda row: -_number(row, "objects"))
    drawn = queues[:_PLOTTED]
    labels = [f"{row['topic']}/{row['queue_id']}" for row in drawn]
    svg = ""
    if drawn:
        numbers = {name: [_number(row, name) for row in drawn] for name in ("segments", "objects")}
        svg = bars(labels, numbers, "number", stacked=False)
    rows = [
        [
            f"{row['broker']}/{row['topic']}/{row['queue_id']}",
            _count(row["first_offset"]),
            _count(row["next_offset"]),
            _count(row["messages"]),
            _count(row["segments"]),
            _count(row["objects"]),
            "–" if row["bytes_an_object"] is None else _mib(row["bytes_an_object"]),
            _count(row["holes"]),
            _count(row["hole_offsets"]),
        ]
        for row in queues[:_QUEUES]
    ]
    return Section(
        "Queues: segments, objects, holes",
        "Queues of most objects first. Many small objects make reading slow and dear: merging has "
        "not come to them yet, or they are of slow queues. A hole is a range of queue offsets that "
        "no segment has.",
        svg,
        (
            "queue", "first offset", "next offset", "messages", "segments", "objects",
            "MiB an object", "holes", "offsets in holes",
        ),
        rows,
        more=_tell_rest(queues, _QUEUES, "queues"),
    )  # fmt: skip


def _costs(topics: Sequence[Row], summary: Summary, prices: Prices) -> Section:
    kinds = ("storage_usd_month", "write_usd_month", "read_usd")
    names = ("storage a month", "writing a month", "reading all once")
    drawn = topics[:_PLOTTED]
    series = {
        name: [_number(row, kind) for row in drawn] for name, kind in zip(names, kinds, strict=True)
    }
    rows = [
        [
            _name(row),
            *(_usd(row[kind]) for kind in kinds),
            _count(row["write_requests_month"]),
            _count(row["read_requests"]),
        ]
        for row in topics[:_TOPICS]
    ]
    brokers = _number(summary.totals, "brokers_write_usd_month")
    return Section(
        "Cost by topic",
        f"US dollars on an object store, wherever this tier is, at {prices.write:g} a million PUT, "
        f"COPY and POST, {prices.list:g} LIST, {prices.read:g} GET, {prices.delete:g} DELETE, "
        f"{prices.transfer:g} a GiB read and {prices.storage:g} a GiB-month. Writing: uploads and "
        "merges of a month in which messages come at the rate of the time that the queue holds. "
        f"Beside it the brokers' own requests, whatever they write: {brokers:,.2f} a month.",
        _draw_bars(drawn, series, "US dollars"),
        ("topic", *(f"{name}, USD" for name in names), "requests to write", "requests to read"),
        rows,
        more=_tell_rest(topics, _TOPICS, "topics"),
    )


def _totals(totals: Row) -> list[tuple[str, str]]:
    shown = []
    for name, value in totals.items():
        if name.endswith("_timestamp"):
            text = "–" if value is None else _time(int(str(value)))
        elif "_usd" in name:
            text = _usd(value)
        else:
            text = _count(value)
        shown.append((name.replace("_", " "), text))
    return shown


def _draw_bars(
    rows: Sequence[Row],
    series: dict[str, list[float]],
    unit: str,
    *,
    stacked: bool = True,
    is_log: bool = False,
) -> str:
    labels = [str(row["topic"]) for row in rows]
    return bars(labels, series, unit, stacked=stacked, is_log=is_log) if rows else ""


def _tell_rest(rows: Sequence[Row], shown: int, what: str) -> str:
    left = len(rows) - shown
    return f"{left:,} more {what} are in {what}.parquet." if left > 0 else ""


def _text(text: str) -> str:
    """Control characters, and those that turn the direction of a text, are escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def _name(row: Row) -> str:
    return str(row["topic"])


def _number(row: Row, name: str) -> float:
    value = row[name]
    return float(value) if isinstance(value, int | float) else 0.0


def _count(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else "–"


def _mib(value: object) -> str:
    return f"{value / _MIB:,.2f}" if isinstance(value, int | float) else "–"


def _usd(value: object) -> str:
    return f"{value:,.4f}" if isinstance(value, int | float) else "–"


def _time(time_ms: int) -> str:
    try:
        moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
