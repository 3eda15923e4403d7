"""`cat` prints the first or the last messages of the queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.command_line import one_line, tieredstore
from tests.kit.growing_tier import START_MS, GrowingTier
from tieredstore.cli.messages import rows


@pytest.fixture
def tier(tmp_path: Path) -> str:
    """A tier whose queue 1 has the newer messages. The tags are T0, T1 and T2 in turn."""
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 10, times_ms=[START_MS + 1000 * n for n in range(10)])
    tier.roll("orders", 0)
    tier.append("orders", 0, 2, times_ms=[START_MS + 20_000, START_MS + 21_000])
    tier.append("orders", 1, 9, times_ms=[START_MS + 10_500 + 1000 * n for n in range(9)])
    return tier.url


def found(tier: str, *arguments: object) -> list[tuple[int, int]]:
    ran = tieredstore("cat", "--tier", tier, "--topic", "orders", *arguments, "--output", "ndjson")
    assert ran.code == 0, ran.err
    return [(row["queue_id"], row["queue_offset"]) for row in ran.rows]


@pytest.mark.parametrize("few", [0, 4096])
def test_reverse_is_each_queue_from_its_end(
    tier: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_FEW", few)
    first, second = [(0, n) for n in range(11, -1, -1)], [(1, n) for n in range(8, -1, -1)]
    assert found(tier, "--reverse") == first + second
    assert found(tier, "--reverse", "--limit", 2) == [(0, 11), (0, 10)]
    assert found(tier, "--reverse", "--queue", 1, "--tag", "T1") == [(1, 7), (1, 4), (1, 1)]


@pytest.mark.parametrize("few", [0, 100])
def test_the_last_are_those_stored_last_in_all(
    tier: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_FEW_LAST", few)
    newest = [(1, 7), (1, 8), (0, 10), (0, 11)]
    assert found(tier, "--tail", 4) == newest
    assert found(tier, "--tail", 4, "--reverse") == newest[::-1]
    assert len(found(tier, "--tail", 10_000)) == 21
    assert found(tier, "--tail", 2, "--queue", 0) == [(0, 10), (0, 11)]
    assert found(tier, "--tail", 3, "--tag", "T0") == [(1, 0), (1, 3), (1, 6)]
    assert found(tier, "--tail", 1, "--until-offset", 3, "--queue", 0) == [(0, 2)]
    until = START_MS + 12_000
    assert found(tier, "--tail", 3, "--until", until) == [(0, 9), (1, 0), (1, 1)]


def test_the_last_of_nothing_says_so(tier: str) -> None:
    ran = tieredstore("cat", "--tier", tier, "--topic", "orders", "--tail", 3, "--tag", "none")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "tieredstore: topic 'orders' has no such message\n"


def test_limit_and_tail_exclude_each_other(tier: str) -> None:
    ran = tieredstore("cat", "--tier", tier, "--topic", "orders", "--tail", 3, "--limit", 2)
    assert ran.code == 2
    assert "--tail and --limit exclude each other" in one_line(ran)
