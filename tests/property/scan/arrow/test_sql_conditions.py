"""Random SQL conditions, with times of any type, give the same result over a dataset as over a
table in memory."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.kit.tier_builder import TierBuilder, message
from tieredstore.scan.rows import COLUMNS
from tieredstore.scan.time_search import search as time_search

duckdb = pytest.importorskip("duckdb")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ODD_TIMES = (
    0,
    -5,
    -1,
    1 << 62,
    -(1 << 63),
    (1 << 63) - 1,
    253_402_300_800_000,
    -62_135_596_800_000,
)
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "is distinct from", "is not distinct from")
RUNS = [3, pytest.param(60, marks=pytest.mark.slow)]


def random_times(chance: random.Random, count: int) -> list[int]:
    now, found = 1_700_000_000_000 + chance.randrange(10**9), []
    for _ in range(count):
        if chance.random() < 0.05:
            now -= chance.choice([10, 5_000, 3_600_000, 3 * 86_400_000])
        now += chance.choice([0, 1, 3, 1_000, 86_400_000 if chance.random() < 0.05 else 3])
        found.append(now if chance.random() > 0.04 else chance.choice(ODD_TIMES))
    return found


def literal(chance: random.Random, time_ms: int) -> str:
    time_ms += chance.choice([0, 0, 1, -1])
    try:
        text = (EPOCH + timedelta(milliseconds=time_ms)).isoformat(sep=" ")[:-6]
    except OverflowError:
        text, time_ms = "2023-11-15 01:02:03.004", 1_700_010_123_004
    return chance.choice(
        [
            f"TIMESTAMPTZ '{text}+00'",
            f"TIMESTAMPTZ '{text}+02:30'",
            f"TIMESTAMP '{text}'",
            f"cast('{text[:10]}' as date)",
            f"to_timestamp({time_ms / 1000})",
            f"make_timestamptz({time_ms * 1000})",
        ]
    )


def atom(chance: random.Random, times: list[int]) -> str:
    one, other = chance.choice(times), chance.choice(times)
    comparison, number = chance.choice(COMPARISONS), chance.randrange(len(times))
    return chance.choice(
        [
            f"store_timestamp {comparison} {literal(chance, one)}",
            f"store_timestamp {comparison} {literal(chance, one)}",
            f"store_timestamp between {literal(chance, one)} and {literal(chance, other)}",
            f"store_timestamp in ({literal(chance, one)}, {literal(chance, other)})",
            f"store_timestamp is {chance.choice(['', 'not '])}null",
            f"coalesce(store_timestamp, {literal(chance, one)}) < {literal(chance, other)}",
            f"queue_offset {comparison} {number}",
            f"queue_offset between {number} and {number + 5}",
            f"queue_id {comparison} {chance.choice([0, 1, -1, 2.5, 'NULL', 99_999_999_999])}",
            f"queue_id in ({chance.choice(['0', 'NULL, 1', '-1', '0, 1'])})",
            f"tags {comparison} 'Tag{chance.randrange(3)}'",
            f"queue_offset {comparison} {chance.choice([1e300, -5, (1 << 63) - 1, 'body_length'])}",
        ]
    )


def condition(chance: random.Random, times: list[int], depth: int = 3) -> str:
    if not depth or chance.random() < 0.3:
        return atom(chance, times)
    if chance.randrange(4) == 0:
        return f"not ({condition(chance, times, depth - 1)})"
    joined = chance.choice(["and", "or"])
    left, right = (condition(chance, times, depth - 1) for _ in range(2))
    return f"({left}) {joined} ({right})"


def answer(connection: Any, table: str, where: str) -> list[str] | str:
    try:
        query = f"select queue_id, queue_offset from {table} where {where}"
        return sorted(map(repr, connection.sql(query).fetchall()))
    except duckdb.Error:
        return "refused"


@pytest.mark.parametrize("runs", RUNS)
def test_j30_random_conditions_answer_as_over_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: int
) -> None:
    for seed in range(runs):
        chance = random.Random(seed)
        monkeypatch.setattr(time_search, "READ_WHOLE_BYTES", chance.choice([1, 8 << 20]))
        times = random_times(chance, 60)
        builder = TierBuilder(
            tmp_path / str(seed), messages_per_segment=chance.choice([7, 1_000]), times=times
        )
        for queue_id, count in ((0, 40), (1, 20)):
            builder.queue(
                "orders", queue_id, [message("orders", queue_id, n) for n in range(count)]
            )
        opened = tieredstore.open(builder.built.url)
        if chance.randrange(2):
            builder.built.metadata.flush()
            opened.verify(seal=True)
        connection = duckdb.connect()
        zone = chance.choice(["UTC", "Asia/Kolkata", "America/New_York"])
        connection.execute(f"set timezone = '{zone}'")
        connection.register("dataset", opened.scan("orders", columns=COLUMNS).to_dataset())
        connection.register("plain", opened.scan("orders", columns=COLUMNS).to_arrow())
        for _ in range(30):
            where = condition(chance, times)
            found, expected = (answer(connection, one, where) for one in ("dataset", "plain"))
            assert found == expected, (seed, where)
