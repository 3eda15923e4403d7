"""Conditions on times are exact in every interface, even after a clock step in a large queue."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.kit.command_line import tieredstore as command
from tests.kit.tier_builder import START_MS, BuiltTier, TierBuilder, message
from tieredstore import jobs
from tieredstore.scan.arrow.schema import DEFAULT_COLUMNS
from tieredstore.scan.time_search import sampled
from tieredstore.scan.time_search import search as time_search

COUNT = 4_000
STEP_MS = 7_200_000


@pytest.fixture(params=[-1, 1])
def times(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the times of 4,000 messages. For 40 of them, which samples miss, the clock was off by
    two hours."""
    monkeypatch.setattr(time_search, "READ_WHOLE_BYTES", 1)
    monkeypatch.setattr(time_search, "TOLD_BYTES", 1)
    monkeypatch.setattr(sampled, "_BLOCK_BYTES", 1 << 16)
    found = [START_MS + number * 100 for number in range(COUNT)]
    for number in range(1_010, 1_050):
        found[number] += request.param * STEP_MS
    return found


def build(root: Path, times: list[int]) -> BuiltTier:
    builder = TierBuilder(root, messages_per_segment=1_500, times=times)
    builder.queue("orders", 0, [message("orders", 0, number) for number in range(COUNT)])
    return builder.built


def borders(times: list[int]) -> list[int]:
    return [START_MS - 1000, times[500], times[1_005], times[1_020], times[2_000], times[-1]]


def test_j31_a_clock_step_hides_no_row_in_any_face(tmp_path: Path, times: list[int]) -> None:
    tier = build(tmp_path / "tier", times)
    opened = tieredstore.open(tier.url)
    shell = ("--tier", tier.url, "--output", "ndjson")
    for border in borders(times):
        late = [number for number, time in enumerate(times) if time >= border]
        early = [number for number, time in enumerate(times) if time < border]
        cases: list[tuple[list[int], dict[str, Any]]] = [
            (late, {"since": border}),
            (early, {"until": border}),
        ]
        for expected, given in cases:
            found = opened.scan("orders", columns="queue_offset", **given).to_arrow()
            assert found["queue_offset"].to_pylist() == expected
            [(name, value)] = given.items()
            rows = command("cat", *shell, "--topic", "orders", f"--{name}", str(value)).rows
            assert [int(row["queue_offset"]) for row in rows] == expected
        condition = f"epoch_ms(store_timestamp) >= {border}"
        query = f"select count(*) as n from orders where {condition}"
        assert [int(row["n"]) for row in command("sql", query, *shell).rows] == [len(late)]
        iso = f"make_timestamptz({border} * 1000)"
        query = f"select count(*) as n from orders where store_timestamp < {iso}"
        assert [int(row["n"]) for row in command("sql", query, *shell).rows] == [len(early)]


def test_j31_an_export_since_a_time_has_every_row(tmp_path: Path, times: list[int]) -> None:
    tier = build(tmp_path / "tier", times)
    for number, border in enumerate(borders(times)):
        report = jobs.export(tier.url, tmp_path / f"to{number}", since=border, work=tmp_path / "w")
        assert report["rows"] == sum(time >= border for time in times)


def test_the_option_is_the_same_in_every_face(tmp_path: Path, times: list[int]) -> None:
    tier = build(tmp_path / "tier", times)
    border = START_MS - 1000 if min(times) < START_MS else START_MS + COUNT * 100
    wanted: dict[str, Any] = {"until": border} if min(times) < START_MS else {"since": border}
    [(name, value)] = wanted.items()
    shell = ("--tier", tier.url, "--output", "ndjson", "--search-times", "sampled")
    opened = tieredstore.open(tier.url)
    assert opened.scan("orders", **wanted).count_rows() == 40
    assert opened.scan("orders", **wanted, search_times="sampled").count_rows() < 40
    assert len(command("cat", *shell, "--topic", "orders", f"--{name}", str(value)).rows) < 40
    comparison = "<" if name == "until" else ">="
    query = (
        "select count(*) as n from orders where store_timestamp "
        f"{comparison} make_timestamptz({value} * 1000)"
    )
    assert int(command("sql", query, *shell).rows[0]["n"]) < 40
    assert "store_timestamp" in DEFAULT_COLUMNS


def test_what_is_read_is_said_first(
    tmp_path: Path, times: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    tier = build(tmp_path / "tier", times)
    size_bytes = sum(
        listing.size_bytes
        for listing in tier.provider.list()
        if listing.id.type.name == "COMMIT_LOG"
    )
    scan = tieredstore.open(tier.url).scan("orders", since=times[2_000])
    with caplog.at_level(logging.WARNING):
        next(scan.batches())
    [record] = [one for one in caplog.records if one.name.endswith("time_search.search")]
    assert "no times are recorded of 4000 messages" in record.getMessage()
    fields = {
        "unrecorded_messages": COUNT,
        "unrecorded_bytes": pytest.approx(size_bytes, rel=0.01),
        "unrecorded_queues": 1,
    }
    assert record.__dict__["fields"] == fields
    caplog.clear()
    assert tieredstore.open(tier.url).scan("orders", search_times="sampled").count_rows() == COUNT
    assert not caplog.records
    arguments = ("--log-format", "json", "cat", "--tier", tier.url, "--topic", "orders")
    lines = command(*arguments, "--since", str(times[2_000])).err.splitlines()
    found = json.loads(lines[0])
    assert {name: found[name] for name in fields} == fields
