"""`cat` prints the same rows whether it decodes messages singly or in batches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.command_line import one_line, tieredstore
from tests.kit.growing_tier import GrowingTier
from tests.kit.tier_builder import TierBuilder, message
from tieredstore.cli.messages import rows

BODIES = ("text", "base64", "sha256", "none")
OUTPUTS = ("table", "json", "ndjson")


def printed(monkeypatch: pytest.MonkeyPatch, *arguments: object, few: int) -> tuple[int, str]:
    monkeypatch.setattr(rows, "_FEW", few)
    ran = tieredstore("cat", *arguments)
    return ran.code, ran.out


def test_javas_messages(public_a: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java's messages are printed, including compressed messages and messages with IPv6 hosts."""
    from tieredstore import open as open_tier

    url = f"file://{public_a / 'tiered'}"
    for number, topic in enumerate(open_tier(url).topics()):
        for output in OUTPUTS if number < 2 else ("ndjson",):
            given = ("--tier", url, "--topic", topic, "--output", output, "--body",
                     BODIES[number % 4])  # fmt: skip
            assert printed(monkeypatch, *given, few=0) == printed(monkeypatch, *given, few=1 << 40)


@pytest.fixture
def odd(tmp_path: Path) -> str:
    """Return two ranges of unusual messages. `cat` prints the second range in batches."""
    builder = TierBuilder(tmp_path / "odd")
    plain = [message("orders", 0, number) for number in range(6)]
    builder.queue("orders", 0, plain)
    strange = [
        message("orders", 1, 0, tags=None, keys=[], uniq_key=None),
        message("orders", 1, 1, properties={"a": "ä\udcff", "b": "日本"}),
        message("orders", 1, 2, keys=["x", "y", "x"], born_host=("fe80::1", 9)),
        message("orders", 1, 3, born_timestamp_ms=2**62),
        message("orders", 1, 4, tags="Tag1", born_timestamp_ms=-5),
    ]
    builder.queue("orders", 1, strange)
    return builder.built.url


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("body", BODIES)
def test_odd_messages(odd: str, output: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("--tier", odd, "--topic", "orders", "--output", output, "--body", body)
    for more in ((), ("--tag", "Tag1"), ("--limit", "8")):
        many = printed(monkeypatch, *given, *more, few=0)
        assert many == printed(monkeypatch, *given, *more, few=1 << 40)
        assert many[0] == 0
        assert many[1]


def test_without_pyarrow(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("--tier", odd, "--topic", "orders", "--output", "ndjson")
    with_it = printed(monkeypatch, *given, few=0)
    monkeypatch.delitem(sys.modules, "tieredstore.scan.arrow.rows")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert printed(monkeypatch, *given, few=0) == with_it


def test_an_empty_answer_says_so_and_a_window_that_ends_before_it_begins_is_refused(
    tmp_path: Path,
) -> None:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 2)
    cat = ["cat", "--tier", tier.url, "--topic", "orders"]
    none = tieredstore(*cat, "--since", "2100-01-01", "--output", "json")
    assert (none.code, none.record) == (0, [])
    assert none.err == "tieredstore: topic 'orders' has no such message\n"
    assert tieredstore(*cat, "--limit", 0).err == ""
    assert tieredstore(*cat).err == ""
    window = ["--since", "2023-01-02", "--until", "2023-01-01"]
    for verb in (cat, ["query", *cat[1:], "--key", "k"]):
        refused = tieredstore(*verb, *window)
        assert refused.code == 2
        assert "since 1672617600000 (epoch ms) is behind until 1672531200000" in one_line(refused)
    assert tieredstore(*cat, "--since", "2023-01-01", "--until", "2023-01-01").code == 0


def test_raw_bodies_are_those_of_the_messages(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("--tier", odd, "--topic", "orders")
    bodies = [row["body"] for row in tieredstore("cat", *given, "--output", "ndjson").rows]
    for few in (0, 1 << 40):
        assert printed(monkeypatch, *given, "--output", "raw", few=few) == (
            0,
            "".join(f"{body}\n" for body in bodies),
        )
