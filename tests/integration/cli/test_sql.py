"""The tests run `tieredstore sql` over a tier."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.kit.command_line import Ran, one_line, tieredstore
from tests.kit.paths import ROOT
from tests.kit.tier_builder import BuiltTier, TierBuilder, message, small_tier
from tests.kit.waiting import wait_for
from tieredstore.table import Tier


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("sql"))


def sql(tier: BuiltTier, query: str, *options: str) -> Ran:
    return tieredstore("sql", "--tier", tier.url, query, *options)


def test_each_topic_is_a_table(tier: BuiltTier) -> None:
    tables = sql(tier, ".tables", "--output", "json").record
    assert [(table["table"], table["queues"]) for table in tables] == [("orders", 2), ("over6", 1)]
    joined = "select count(*) as n from orders o join over6 using (queue_offset)"
    assert sql(tier, joined, "--output", "json").record == [{"n": 4}]
    assert sql(tier, "select count(*) as n from ORDERS", "--output", "json").record == [{"n": 16}]


def test_columns_are_those_of_a_message(tier: BuiltTier) -> None:
    query = "select * from orders where queue_id = 0 order by queue_offset limit 1"
    (row,) = sql(tier, query, "--output", "json").record
    (message,) = tieredstore(
        *("cat", "--tier", tier.url, "--topic", "orders", "--limit", 1, "--output", "json")
    ).record
    times = ("born_timestamp", "store_timestamp")
    assert {name: row[name] for name in row if name not in times} == {
        name: message[name] for name in message if name not in times
    }
    assert row["store_timestamp"] == "2023-11-14T22:13:20.000Z"


@pytest.mark.parametrize(
    ("condition", "offsets"),
    [
        ("queue_id = 1", [0, 1, 2, 3]),
        ("queue_offset between 103 and 104", [103, 104]),
        ("store_timestamp >= '2023-11-14 22:13:41'", [2, 3]),
        ("list_contains(keys, 'orders-0-1')", [101]),
        ("queue_id = 1 and 'orders-1-2' in keys", [2]),
        ("queue_id = 0 or tags = 'Tag0'", [0, 3, *range(100, 112)]),
        ("text(body) like 'body 3%' and queue_id = 1", [3]),
        ("properties['TAGS'] = 'Tag2' and queue_id in (1, 5)", [2]),
        ("queue_id = 7", []),
    ],
)
def test_conditions_choose_the_messages_that_they_say(
    tier: BuiltTier, condition: str, offsets: list[int]
) -> None:
    query = f"select queue_offset from orders where {condition} order by all"
    ran = sql(tier, query, "--output", "json")
    assert [row["queue_offset"] for row in ran.record] == offsets, ran.err


def test_a_key_is_looked_for_in_the_index(tier: BuiltTier, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    scan = Tier.scan

    def spy(self: Tier, *args: object, **kwargs: object) -> object:
        asked.append(kwargs["keys"])
        return scan(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Tier, "scan", spy)
    from tieredstore.cli.main import run

    query = "select 1 from orders where list_contains(keys, 'orders-0-1')"
    assert run(["sql", "--tier", tier.url, query]) == 0
    assert asked == [("orders-0-1",)]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("select (select count(*) from ORDERS) as n, {key} as keyed", 16),
        ("select (select count(*) from orders) as n, {key} as keyed", 16),
        ("select count(*) as n from orders as o(keys) where contains(keys, 'ord')", 16),
    ],
)
def test_a_key_narrows_only_the_table_of_its_condition(
    tier: BuiltTier, query: str, count: int
) -> None:
    key = "(select count(*) from orders where list_contains(keys, 'orders-0-1'))"
    [row] = sql(tier, query.format(key=key), "--output", "json").record
    assert row["n"] == count
    assert row.get("keyed", 1) == 1


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    """Topics whose names differ only in case, and a topic named like an SQL keyword."""
    builder = TierBuilder(tmp_path_factory.mktemp("alike"))
    for topic, count in [("Paid", 1), ("paid", 2), ("order", 3)]:
        builder.queue(topic, 0, [message(topic, 0, n) for n in range(count)])
    return builder.built


def test_each_table_is_listed_as_a_query_names_it(alike: BuiltTier) -> None:
    tables = sql(alike, ".tables", "--output", "json").record
    assert [table["table"] for table in tables] == ["Paid", '"order"', "paid"]
    counts = [
        sql(alike, f"select count(*) as n from {table['table']}", "--output", "json").record
        for table in tables
    ]
    assert counts == [[{"n": 1}], [{"n": 3}], [{"n": 2}]]


@pytest.mark.parametrize("query", ["from paid, Paid", "from PAID"])
def test_topics_that_differ_in_case_alone_are_never_taken_for_each_other(
    alike: BuiltTier, query: str
) -> None:
    ran = sql(alike, query)
    assert ran.code == 2
    assert "topics Paid and paid differ in case alone" in one_line(ran)


@pytest.mark.parametrize("form", ["table", "csv", "tsv", "vertical", "ndjson"])
def test_it_is_printed_in_the_forms_of_the_others(tier: BuiltTier, form: str) -> None:
    query = "select tags, count(*) as n, avg(body_length) as mean from orders group by 1 order by 1"
    out = sql(tier, query, "--output", form).out
    if form == "csv":
        assert next(csv.DictReader(io.StringIO(out))) == {"tags": "Tag0", "n": "6", "mean": "47.5"}
    elif form == "ndjson":
        assert json.loads(out.splitlines()[0]) == {"tags": "Tag0", "n": 6, "mean": 47.5}
    else:
        lines = {
            "table": "tags  n  mean", "tsv": "tags\tn\tmean", "vertical": "-[ 1 ]".ljust(24, "-"),
        }  # fmt: skip
        assert out.splitlines()[0] == lines[form]


def test_bodies_are_shown_as_asked_for(tier: BuiltTier) -> None:
    query = "select body from orders where queue_id = 0 and queue_offset = 100"
    assert sql(tier, query, "--output", "json").record == [{"body": "body 0 of orders/0 "}]
    none = sql(tier, query, "--output", "json", "--body", "none").record
    assert none == [{"body": None}]


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("select * from ordres", "no exist; did you mean 'orders'?"),
        ("select * from nothing_like_it", "`.tables` lists those of the tier"),
        ("select * from orders where keys = 'a'", "; keys are a list: list_contains(keys, 'k')"),
        ("select x from orders", "x"),
        ("select cast(tags as int) from orders", "Tag0"),
        ("delete from orders", "expected a SELECT"),
    ],
)
def test_what_cannot_be_run_is_one_line(tier: BuiltTier, query: str, problem: str) -> None:
    ran = sql(tier, query)
    assert ran.code == 2
    line = one_line(ran)
    assert line.startswith("tieredstore: error: sql: ")
    assert problem.removeprefix("no exist") in line


def test_the_page_shows_what_is_printed(tier: BuiltTier) -> None:
    examples = re.findall(
        r'    \$ tieredstore sql --tier /data/tier "(.*)"\n((?:    .*\n)+)',
        (ROOT / "docs" / "cli.md").read_text(),
    )
    assert len(examples) == 2
    for query, shown in examples:
        assert sql(tier, query).out == textwrap.dedent(shown)


def test_ctrl_c_interrupts_a_query(tier: BuiltTier) -> None:
    query = "select text(body), (select sum(sqrt(range)) from range(10000000000)) from orders"
    command = [sys.executable, "-m", "tieredstore", "sql", "--tier", tier.url, query]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: is_using_threads(process.pid))
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1].strip() == "tieredstore: error: interrupted"
    assert process.returncode == 130


def is_using_threads(pid: int) -> bool:
    """Return whether DuckDB has started additional threads."""
    return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1


def test_a_result_without_a_row_says_so(tier: BuiltTier) -> None:
    ran = sql(tier, "select * from orders where queue_id = 9")
    assert (ran.code, ran.out, ran.err) == (0, "", "tieredstore: no row\n")


def test_damage_is_the_error_that_it_is_everywhere(tmp_path: Path) -> None:
    damaged = small_tier(tmp_path)
    log = next((tmp_path / "tier").rglob("orders/0/COMMIT_LOG/[!.]*"))
    data = bytearray(log.read_bytes())
    data[data.index(b"body ")] ^= 0xFF
    log.write_bytes(data)
    ran = sql(damaged, "select count(body) from orders")
    assert ran.code == 1
    assert "orders/0" in one_line(ran)
