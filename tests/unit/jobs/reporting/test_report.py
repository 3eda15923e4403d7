"""Tests of the job `report`: the page, the tables, and a rerun after a kill."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import os
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.kit.command_line import one_line, tieredstore
from tests.kit.growing_tier import GrowingTier
from tests.kit.tier_builder import (
    BROKER,
    START_MS,
    TierBuilder,
    flip,
    message,
    small_tier,
)
from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentListing
from tieredstore.contracts.usage import Prices
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import ReportOptions
from tieredstore.jobs.reporting import job
from tieredstore.jobs.reporting.costs import broker_cost, queue_cost, read_requests, uploads_month
from tieredstore.jobs.reporting.facts import Facts
from tieredstore.jobs.reporting.job import run_report
from tieredstore.jobs.reporting.tasks import ReportTask, look
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.message.encoding import Message
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.location import TierLocation, locate
from tieredstore.table import Tier

NOW_MS = START_MS + 60_000
OPTIONS = ReportOptions(as_of=NOW_MS)
PRICED = replace(OPTIONS, prices={"storage": 0.023})
TABLES = ("topics", "queues", "values", "ages")


def told(report: dict[str, object]) -> dict[str, object]:
    """Return the report without its start time, duration and stages."""
    return {
        name: report[name] for name in report if name not in {"started_ms", "seconds", "stages"}
    }


def ran(source: TierLocation, to: Path, options: ReportOptions = OPTIONS) -> dict[str, Any]:
    with Journal(None, {}) as journal:
        return told(run_report(JobRun("report", LocalRunner(1), journal), source, to, options))


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / f"{name}.parquet").to_pylist()
    return found


class Parsed(HTMLParser):
    """Parser that collects the text and attributes of all elements, and checks that each is
    closed."""

    VOID = frozenset({"meta"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.feed(path.read_text())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_rows_are_those_of_the_messages(tmp_path: Path) -> None:
    tier = small_tier(tmp_path / "t")
    totals = ran(locate(tier.url), tmp_path / "to")
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == sorted(totals["files"])
    assert (totals["topics"], totals["queues"], totals["messages"]) == (2, 3, 22)
    assert (totals["damage"], totals["holes"]) == (0, 0)
    for row, (key, stored) in zip(
        rows(tmp_path / "to", "queues"), sorted_queues(tier), strict=True
    ):
        sizes = [len(item.record) for item in stored]
        assert (row["broker"], row["topic"], row["queue_id"]) == (BROKER, *key)
        assert row["first_offset"] == stored[0].queue_offset
        assert row["next_offset"] == stored[-1].queue_offset + 1
        assert row["messages"] == len(stored)
        assert row["commit_log_bytes"] == row["record_bytes"] == sum(sizes)
        assert row["consume_queue_bytes"] == 20 * len(stored)
        assert row["segments"] == row["objects"] == 2 * -(-len(stored) // 5)
        assert row["record_bytes_mean"] == pytest.approx(sum(sizes) / len(sizes))
        assert (row["record_bytes_min"], row["record_bytes_max"]) == (min(sizes), max(sizes))
        assert epoch_ms(row["min_store_timestamp"]) == stored[0].store_timestamp_ms
        assert epoch_ms(row["max_store_timestamp"]) == stored[-1].store_timestamp_ms
    orders, over6 = rows(tmp_path / "to", "topics")
    assert (orders["topic"], orders["keys_values"], orders["keys_distinct"]) == ("orders", 16, 16)
    assert (orders["tags_distinct"], orders["uniq_key_distinct"]) == (3, 16)
    assert orders["index_bytes"] + over6["index_bytes"] == totals["index_bytes"] > 0
    assert orders["index_bytes"] == totals["index_bytes"] * 16 // 22


def sorted_queues(tier: Any) -> list[Any]:
    return sorted(tier.stored.items())


def epoch_ms(moment: dt.datetime) -> int:
    return round(moment.timestamp() * 1000)


def test_keys_that_are_frequent_are_found_and_unique_ones_told_apart(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path / "t", messages_per_segment=500)
    messages = [
        Message.create(
            "t", b"x", keys=["hot" if n % 2 else f"k{n}", "all"], uniq_key=f"u{n // 10}", tags="T"
        )
        for n in range(1000)
    ]
    builder.queue("t", 0, messages)
    ran(locate(builder.built.url), tmp_path / "to")
    found = rows(tmp_path / "to", "values")
    all_, hot = [row for row in found if row["kind"] == "KEYS"][:2]
    assert (all_["value"], all_["rank"], hot["value"]) == ("all", 1, "hot")
    assert all_["count"] <= 1000 <= all_["count_most"]
    assert hot["count"] <= 500 <= hot["count_most"]
    assert all_["count_most"] - all_["count"] <= 2000 / 257
    assert all_["share"] == pytest.approx(0.5, abs=0.01)
    [topic] = rows(tmp_path / "to", "topics")
    assert (topic["keys_values"], topic["keys_distinct"]) == (2000, 502)
    assert (topic["uniq_key_values"], topic["uniq_key_distinct"]) == (1000, 100)
    assert topic["tags_distinct"] == 1


def test_ages_are_told_from_the_given_time(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path / "t")
    stored = builder.queue("t", 0, [message("t", 0, n) for n in range(12)], first_offset=7)
    # The fifth message is just an hour old, the one in front of it older.
    now_ms = stored[4].store_timestamp_ms + 3_600_000
    ran(locate(builder.built.url), tmp_path / "to", ReportOptions(as_of=now_ms))
    ages = {row["age"]: row for row in rows(tmp_path / "to", "ages") if row["messages"]}
    assert {name: row["messages"] for name, row in ages.items()} == {
        "up to 1 hour": 8,
        "1 to 6 hours": 4,
    }
    assert ages["1 to 6 hours"]["record_bytes"] == sum(len(item.record) for item in stored[:4])


@pytest.mark.parametrize("percent", [0, 30, 100])
def test_a_sample_changes_nothing_but_keys_and_tags(tmp_path: Path, percent: int) -> None:
    builder = TierBuilder(tmp_path / "t", messages_per_segment=10_000)
    builder.queue("t", 0, [message("t", 0, n) for n in range(20_000)])
    options = replace(OPTIONS, keys_percent=percent)
    ran(locate(builder.built.url), tmp_path / "to", options)
    [topic] = rows(tmp_path / "to", "topics")
    assert topic["messages"] == 20_000
    assert topic["commit_log_bytes"] == topic["record_bytes"]
    read = topic["messages_read"]
    assert read == {0: 0, 100: 20_000}.get(percent, read)
    assert read == topic["uniq_key_values"]
    if percent == 30:
        assert 2_000 < read < 11_000
    sections = Parsed(tmp_path / "to" / "report.html").tags["section"]
    assert sections == (4 if percent == 0 else 7)


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    '"><b>&amp;',
    "$x^2_{$",
    "-->]]>",
    "\u202eevil",
    "\u3042\U0001f600",
    "{{ 7 * 7 }}",
    "x" * 120,
)


def test_names_and_keys_are_text_whatever_they_are(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path / "t")
    for topic in HOSTILE:
        tags = topic.encode(errors="replace").decode()
        messages = [message(topic, 0, n, keys=[f"k{n}"], tags=tags) for n in range(3)]
        builder.queue(topic, 0, messages)
    named = [message("named", 0, n, tags="line\nfeed\x07") for n in range(3)]
    builder.queue("named", 0, named)
    totals = ran(locate(builder.built.url), tmp_path / "to")
    assert totals["damage"] == 0
    assert totals["topics"] == len(HOSTILE) + 1
    parsed = Parsed(tmp_path / "to" / "report.html")
    assert parsed.tags["img"] == parsed.tags["b"] == 0
    assert parsed.tags["script"] == 1  # the page's own
    text = "\n".join(parsed.texts)
    for topic in ("<img src=x onerror=alert(1)>", '"><b>&amp;', "$x^2_{$", "-->]]>", "{{ 7 * 7 }}"):
        assert topic in text
    assert "\u202e" not in text
    assert r"\u202eevil" in text
    assert r"line\nfeed\x07" in text
    names = {row["topic"] for row in rows(tmp_path / "to", "topics")}
    assert names == {*HOSTILE, "named"}
    values = {row["value"] for row in rows(tmp_path / "to", "values")}
    assert {*HOSTILE, "line\nfeed\x07"} <= values


def test_a_page_asks_nobody_for_anything_and_has_a_table_beside_each_chart(tmp_path: Path) -> None:
    ran(locate(small_tier(tmp_path / "t").url), tmp_path / "to", PRICED)
    parsed = Parsed(tmp_path / "to" / "report.html")
    assert parsed.tags["section"] == parsed.tags["table"] == 8
    # No id came twice, so nothing is drawn of them.
    assert classes(parsed)["chart"] == 7
    assert not {"link", "iframe", "object", "image", "img", "svg"} & set(parsed.tags)
    for tag, name, value in parsed.attributes:
        assert "//" not in value, (tag, name, value)
        if name in {"href", "src"}:
            assert value.startswith("#")
    identities = [value for _, name, value in parsed.attributes if name == "id"]
    links = [value for tag, _, value in parsed.attributes if tag == "a"]
    assert links == [f"#{name}" for name in identities]
    labels = [value for _, name, value in parsed.attributes if name == "aria-label"]
    assert len(labels) == 1 + 7 + 8


def classes(parsed: Parsed) -> Counter[str]:
    found = (value.split() for _, name, value in parsed.attributes if name == "class")
    return Counter(word for words in found for word in words)


def test_the_page_runs_its_own_script_and_no_other(tmp_path: Path) -> None:
    ran(locate(small_tier(tmp_path / "t").url), tmp_path / "to")
    text = (tmp_path / "to" / "report.html").read_text()
    [script] = re.findall(r"<script>(.*)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    [policy] = re.findall(r'Policy" content="([^"]*)"', text)
    assert policy.split("; ") == [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{digest}'",
    ]


def test_sizes_and_times_are_for_people_and_tables_keep_the_numbers(tmp_path: Path) -> None:
    ran(locate(small_tier(tmp_path / "t").url), tmp_path / "to")
    page = (tmp_path / "to" / "report.html").read_text()
    [topic, *_] = rows(tmp_path / "to", "topics")
    assert re.search(r"[0-9.]+ kB", page)
    assert f'data-key="{topic["commit_log_bytes"]}"' in page
    assert "UTC" in page
    for raw in ("commit_log", "timestamp", "_bytes", "usd", "None"):
        assert raw not in re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)


def test_cost_is_told_where_a_price_applies_and_from_little_traffic_with_a_word(
    tmp_path: Path,
) -> None:
    builder = TierBuilder(tmp_path / "t")
    builder.queue("brief", 0, [message("brief", 0, n) for n in range(4)])
    source = locate(builder.built.url)
    totals = ran(source, tmp_path / "to")
    said = "".join(Parsed(tmp_path / "to" / "report.html").texts)
    assert "What it costs" not in said
    assert "$" not in said
    assert "this page has no costs" in said
    assert {name: totals[name] for name in totals if "_usd" in name} == dict.fromkeys(
        (*("storage_usd_month", "read_usd", "write_usd_month", "brokers_write_usd_month"),)
    )
    assert totals["read_requests"] > 0
    [row] = rows(tmp_path / "to", "topics")
    assert row["write_usd_month"] is None
    ran(source, tmp_path / "to", PRICED)
    said = "".join(Parsed(tmp_path / "to" / "report.html").texts)
    assert "What it costs" in said
    assert (
        "The cost of writing is a rough estimate. The topic had messages of less than a day" in said
    )


def test_a_tier_that_is_paid_by_the_request_is_told_at_its_own_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metered = SimpleNamespace(prices=Prices(storage=1.5, write=7.0))
    monkeypatch.setattr(job, "find_layer", lambda provider, kind: metered)
    totals = ran(locate(small_tier(tmp_path / "t").url), tmp_path / "to")
    assert totals["storage_usd_month"] > 0
    said = "".join(Parsed(tmp_path / "to" / "report.html").texts)
    assert "at $7 a million PUT" in said
    assert "$1.5 a GiB-month" in said


def test_days_of_messages_are_enough_for_what_writing_costs(tmp_path: Path) -> None:
    days = [START_MS + number * 86_400_000 for number in range(3)]
    builder = TierBuilder(tmp_path / "t", times=days)
    builder.queue("slow", 0, [message("slow", 0, number) for number in range(3)])
    ran(locate(builder.built.url), tmp_path / "to", replace(PRICED, as_of=days[-1]))
    said = "".join(Parsed(tmp_path / "to" / "report.html").texts)
    assert "What it costs" in said
    assert "2 days" in said
    assert "a rough estimate" not in said


def test_an_empty_tier_has_an_empty_report(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path / "t")
    builder.queue("t", 0, [message("t", 0, 0)])
    for path in (tmp_path / "t" / "tier").rglob("*"):
        if path.is_file():
            path.unlink()
    totals = ran(locate(builder.built.url), tmp_path / "to")
    assert (totals["queues"], totals["messages"], totals["damage"]) == (0, 0, 0)
    parsed = Parsed(tmp_path / "to" / "report.html")
    assert classes(parsed)["chart"] == 0
    assert all(not rows(tmp_path / "to", name) for name in TABLES)


def test_damage_is_counted_and_named_and_the_rest_is_reported(tmp_path: Path) -> None:
    tier = small_tier(tmp_path / "t")
    log = SegmentId(f"{BROKER}/orders/1", FileSegmentType.COMMIT_LOG, 0)
    flip(tier.path(log), 4)
    tier.path(SegmentId(f"{BROKER}/over6/0", FileSegmentType.COMMIT_LOG, 0)).write_bytes(b"")
    totals = ran(locate(tier.url), tmp_path / "to")
    assert totals["damage"] > 0
    assert any(str(log) in text for text in totals["damage_met"])
    assert {row["queue_id"]: row["messages"] for row in rows(tmp_path / "to", "queues")[:2]} == {
        0: 12,
        1: 4,
    }
    assert "found on the way" in "".join(Parsed(tmp_path / "to" / "report.html").texts)


def test_holes_and_expired_messages_are_told(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path / "t", messages_per_segment=4)
    builder.queue("t", 0, [message("t", 0, n) for n in range(12)])
    tier = builder.built
    queue = f"{BROKER}/t/0"
    # The first log segment has expired, its units have not. Four units in the middle never came.
    tier.path(SegmentId(queue, FileSegmentType.COMMIT_LOG, 0)).unlink()
    tier.path(SegmentId(queue, FileSegmentType.CONSUME_QUEUE, 80)).unlink()
    ran(locate(tier.url), tmp_path / "to")
    [row] = rows(tmp_path / "to", "queues")
    assert (row["first_offset"], row["next_offset"], row["messages"]) == (8, 12, 4)
    assert (row["holes"], row["hole_offsets"]) == (1, 4)


@pytest.mark.parametrize("missing", [0, 80, 160], ids=["first", "middle", "last"])
@pytest.mark.parametrize("with_state", [False, True])
def test_lost_units_are_damage_and_no_hole(tmp_path: Path, missing: int, with_state: bool) -> None:
    builder = TierBuilder(tmp_path / "t", messages_per_segment=4)
    builder.queue("t", 0, [message("t", 0, n) for n in range(12)])
    builder.built.metadata.flush()
    segment = SegmentId(f"{BROKER}/t/0", FileSegmentType.CONSUME_QUEUE, missing)
    builder.built.path(segment).unlink()
    state = builder.built.state if with_state else None
    totals = ran(locate(builder.built.url, state=state), tmp_path / "to")
    known = with_state or missing == 80  # without the state, losses at an end are unknown
    assert (totals["holes"], totals["damage"] > 0) == (0, known)
    assert any(f"{segment}" in text for text in totals["damage_met"]) == known
    [row] = rows(tmp_path / "to", "queues")
    assert (row["messages"], row["holes"], row["hole_offsets"]) == (8, 0, 0)


class Killed(Exception):
    pass


class DyingJournal(Journal):
    """Journal that ends the process before or after it writes line `n`."""

    left = 0
    after = False

    def record(self, step: str, outcome: object) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Killed
        super().record(step, outcome)
        if self.left == 0:
            raise Killed


def killed_at(step: int, after: bool, path: Path, source: TierLocation, to: Path) -> None:
    with DyingJournal(path, {}) as journal:
        journal.left, journal.after = step, after
        with pytest.raises(Killed):
            run_report(JobRun("report", LocalRunner(1), journal), source, to, OPTIONS)


@pytest.mark.parametrize("after", [False, True])
def test_a_run_after_a_kill_at_any_step_ends_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr(job, "TASK_BYTES", 2500)
    source = locate(small_tier(tmp_path / "t").url)
    looked: list[str] = []

    def look_and_note(task: ReportTask) -> Facts:
        looked.append(task.key)
        return look(task)

    monkeypatch.setattr(job, "look", look_and_note)
    whole = ran(source, tmp_path / "whole")
    tasks = len(looked)
    assert tasks == len(set(looked)) > 2
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    for step in range(1, tasks + 3):  # the pin, the tasks, the commit
        to, path = tmp_path / f"to-{step}", tmp_path / f"journal-{step}"
        looked.clear()
        killed_at(step, after, path, source, to)
        with Journal(path, {}) as journal:
            run = JobRun("report", LocalRunner(1), journal)
            found = told(run_report(run, source, to, OPTIONS))
        assert {path.name: path.read_bytes() for path in to.iterdir()} == expected
        assert found == {**whole, "to": str(to)}
        assert len(looked) == tasks + (1 < step < tasks + 2 and not after)


def test_ages_of_a_run_that_goes_on_are_told_from_when_it_began(tmp_path: Path) -> None:
    source = locate(small_tier(tmp_path / "t").url)
    path = tmp_path / "journal"
    killed_at(1, True, path, source, tmp_path / "to")
    with Journal(path, {}) as journal:
        run = JobRun("report", LocalRunner(1), journal)
        run_report(run, source, tmp_path / "to", ReportOptions(as_of=NOW_MS * 2))
    ages = {row["age"] for row in rows(tmp_path / "to", "ages") if row["messages"]}
    assert ages == {"up to 1 hour"}


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_very_many_queues(count: int, tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path / "t")
    stored = builder.queue("many", 0, [message("many", 0, n) for n in range(3)])
    queue = next((tmp_path / "t" / "tier").rglob("many/0"))
    files = [(path.relative_to(queue), path) for path in queue.rglob("*/*")]
    for number in range(1, count):
        for name, file in files:
            path = queue.parent / str(number) / name
            path.parent.mkdir(parents=True)
            os.link(file, path)
    totals = ran(locate(builder.built.url), tmp_path / "to", replace(OPTIONS, keys_percent=0))
    assert (totals["queues"], totals["messages"]) == (count, count * 3)
    assert totals["record_bytes"] == count * sum(len(item.record) for item in stored)
    assert len(rows(tmp_path / "to", "queues")) == count
    assert (tmp_path / "to" / "report.html").stat().st_size < 300_000


def queue_of(messages: int, record_bytes: int, segments: int = 1) -> QueueFiles:
    path = f"{BROKER}/t/0"

    def extents(type: FileSegmentType, size: int) -> tuple[SegmentExtent, ...]:
        each = size // segments
        return tuple(SegmentExtent(SegmentId(path, type, n * each), each) for n in range(segments))

    log = extents(FileSegmentType.COMMIT_LOG, messages * record_bytes)
    return QueueFiles(BROKER, "t", 0, log, extents(FileSegmentType.CONSUME_QUEUE, messages * 20))


def test_the_cost_of_slow_queues_is_that_of_the_simulation_in_the_docs() -> None:
    """The report's cost of slow queues equals that in docs/cost.md. Fence checks are excluded,
    because the simulated clock makes them free."""
    month_ms = 30 * 86_400_000

    def price_looks(config: StoreConfig) -> float:
        uploads = uploads_month(1 / 5, 1024 / 5, config)
        return 10_000 * uploads * Prices().price_request("HeadObject")

    messages = month_ms // 5000
    queue = queue_of(messages, 1024, segments=8)
    one = queue_cost(queue, messages, messages * 1024, month_ms, StoreConfig(), Prices())
    total = 10_000 * one.write_usd_month + broker_cost(520_000, Prices()).write_usd_month
    assert total - price_looks(StoreConfig()) == pytest.approx(309.18, rel=0.1)
    fixed = replace_config(adaptive_commit_max_interval_ms=0)
    one = queue_cost(queue, messages, messages * 1024, month_ms, fixed, Prices())
    total = 10_000 * one.write_usd_month
    assert total - price_looks(fixed) == pytest.approx(4_190.89, rel=0.1)


def test_a_broker_that_uploads_nothing_pays_for_its_sweeps_alone() -> None:
    """A broker without uploads pays only for its sweeps."""
    idle = broker_cost(2_500, Prices())
    assert idle.write_requests_month == 30 * 3 + 30
    assert idle.write_usd_month == pytest.approx(120 * 5e-6)


def test_each_upload_of_a_queue_is_a_write_and_a_look() -> None:
    queue = queue_of(1000, 1024)
    month_ms = 30 * 86_400_000
    messages_s = 1000 / (month_ms / 1000)
    uploads = uploads_month(messages_s, 1024 * messages_s, StoreConfig())
    free_reads, paid_reads = Prices(read=0), Prices(read=1)
    costs = [
        queue_cost(queue, 1000, 1024 * 1000, month_ms, StoreConfig(), prices).write_usd_month
        for prices in (free_reads, paid_reads)
    ]
    looks_and_reads_of_merging = 1 + 2
    assert costs[1] - costs[0] == pytest.approx(looks_and_reads_of_merging * uploads * 1e-6)


def replace_config(**fields: Any) -> StoreConfig:
    return StoreConfig(**fields)


@pytest.mark.parametrize(("kib", "mib_a_write"), [(64, 5.0), (256, 5.0), (1024, 9.8), (4096, 11.2)])
def test_uploads_of_fast_queues_are_those_of_the_simulation(kib: int, mib_a_write: float) -> None:
    uploads = uploads_month(kib, kib * 1024, StoreConfig())
    mib = 30 * 86_400 * kib / 1024 / uploads
    assert mib == pytest.approx(mib_a_write, rel=0.3)


def test_each_object_is_a_read_of_its_own_and_large_ones_are_several() -> None:
    queue = queue_of(1000, 9 << 10, segments=2)  # 4.5 MB each: two reads of 4 MiB
    assert read_requests(queue) == 2 * 2 + 2
    log = tuple(
        replace(extent, listing=SegmentListing(extent.id, extent.size_bytes, objects=7))
        for extent in queue.commit_log
    )
    assert read_requests(replace(queue, commit_log=log)) == 2 * 7 + 2


def test_prices_change_what_they_are_of_and_nothing_else(tmp_path: Path) -> None:
    source = locate(small_tier(tmp_path / "t").url)
    usual = ran(source, tmp_path / "to", PRICED)
    dear = ran(source, tmp_path / "to", replace(OPTIONS, prices={"storage": 0.046, "read": 0.8}))
    assert dear["storage_usd_month"] == pytest.approx(2 * usual["storage_usd_month"])
    assert dear["read_usd"] == pytest.approx(2 * usual["read_usd"])
    assert dear["read_requests"] == usual["read_requests"]


def test_the_verb_writes_the_report_and_its_json(tmp_path: Path) -> None:
    tier = small_tier(tmp_path / "t")
    given = (
        "report", "--tier", tier.url, "--state", tier.state, "--to", tmp_path / "to",
        "--work", tmp_path / "work", "--report", tmp_path / "report.json", "--workers", 1,
        "--quiet", "--output", "json",
    )  # fmt: skip
    done = tieredstore(*given, "--sample", "50", "--price", "storage=1", "--as-of", NOW_MS)
    assert (done.code, done.err) == (0, "")
    assert done.record == json.loads((tmp_path / "report.json").read_bytes())
    assert done.record["messages"] == 22
    assert done.record["stages"][0]["stage"] == "look"
    assert not list((tmp_path / "work").iterdir())
    bad = tieredstore(*given, "--price", "gold=1")
    assert "write, list, read, delete, transfer, storage" in one_line(bad)
    assert bad.code == 2
    assert tieredstore(*given, "--sample", "0").code == 2


@pytest.mark.parametrize("end", ["cut", "zeros"])
def test_j41_a_report_ends_before_a_torn_last_message(tmp_path: Path, end: str) -> None:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 20)
    [log] = tier.segments("orders", 0, FileSegmentType.COMMIT_LOG)
    data = log.read_bytes()
    whole = data[: data.rindex((0xDAA320A7).to_bytes(4, "big")) - 4]
    rest = data[len(whole) : -10] if end == "cut" else bytes(len(data) - len(whole))
    log.write_bytes(whole + rest)
    report = ran(locate(tier.url), tmp_path / "out")
    assert (report["messages"], report["damage_met"]) == (19, [])
    assert report["min_store_timestamp"] == START_MS
    assert report["max_store_timestamp"] == START_MS + 18 * 1000


@pytest.mark.parametrize("segments", [1, 3])
def test_j72_messages_that_expire_during_a_report_are_no_damage(
    tmp_path: Path, segments: int
) -> None:
    tier = GrowingTier(tmp_path)
    for _ in range(3):
        tier.append("orders", 0, 10)
        tier.roll("orders", 0)
    location = locate(tier.url)
    catalogue = Tier(location).catalogue()
    [task] = job._tasks(location, catalogue, job._pin(catalogue, NOW_MS), 100)
    for _ in range(segments):
        tier.expire("orders", 0)
    facts = look(task)
    assert (facts.findings, facts.texts) == (0, [])
    assert facts.queues["broker-a/orders/0"].sizes.count == 30 - 10 * segments
    assert facts.queues["broker-a/orders/0"].holes == 0
