"""`cat` prints the messages selected by its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.command_line import one_line, tieredstore
from tests.kit.growing_tier import GrowingTier


@pytest.fixture
def tier(tmp_path: Path) -> str:
    """A tier whose messages have the tags T0, T1 and T2 in turn."""
    tier = GrowingTier(tmp_path)
    for topic, queues in (("orders", 2), ("ordinary", 1), ("other", 1)):
        for queue_id in range(queues):
            tier.append(topic, queue_id, 6)
    return tier.url


def found(tier: str, *arguments: object) -> list[tuple[str, int, int]]:
    ran = tieredstore("cat", "--tier", tier, *arguments, "--output", "ndjson")
    assert ran.code == 0, ran.err
    return [(row["topic"], row["queue_id"], row["queue_offset"]) for row in ran.rows]


@pytest.mark.parametrize(
    ("given", "topics"),
    [
        (["--topic", "orders"], {"orders"}),
        (["--topic", "orders,other"], {"orders", "other"}),
        (["--topic", "orders", "--topics", "other"], {"orders", "other"}),
        (["--topic", "ord*"], {"orders", "ordinary"}),
        (["--topic", "ord*,othe[r]"], {"orders", "ordinary", "other"}),
    ],
)
def test_topics_are_names_and_patterns(tier: str, given: list[str], topics: set[str]) -> None:
    rows = found(tier, *given)
    assert {topic for topic, _, _ in rows} == topics
    assert rows == sorted(rows)
    assert len(rows) == 6 * (len(topics) + ("orders" in topics))


def test_a_queue_of_several_topics_is_that_of_those_that_have_it(tier: str) -> None:
    assert found(tier, "--topic", "ord*", "--queue", 1) == [("orders", 1, n) for n in range(6)]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--topic", "orders,othr"], "no topic 'othr' in the tier. Did you mean other?"),
        (["--topic", "x*"], "no topic 'x*' in the tier"),
        (["--topic", "ord*", "--queue", "7"], "no topic of ord* has a queue 7"),
        (["--topic", "orders", "--queue", "7"], "topic 'orders' has no queue 7. It has 0, 1"),
        (["--topic", "ord*", "--broker", "b"], "no broker 'b' in the tier"),
        (["--topic", ","], "expected a topic"),
    ],
)
def test_what_the_tier_does_not_have_is_refused(tier: str, given: list[str], problem: str) -> None:
    ran = tieredstore("cat", "--tier", tier, *given)
    assert ran.code == 2
    assert problem in one_line(ran)


@pytest.mark.parametrize(
    ("expression", "offsets"),
    [
        ("T1", [1, 4]),
        ("T0 || T2", [0, 2, 3, 5]),
        (" T2||none ", [2, 5]),
        ("*", [0, 1, 2, 3, 4, 5]),
        ("T1 || *", [0, 1, 2, 3, 4, 5]),
        ("T1 ||", [1, 4]),
        ("none", []),
    ],
)
def test_tags_are_those_of_a_subscription(tier: str, expression: str, offsets: list[int]) -> None:
    rows = found(tier, "--topic", "other", "--tag", expression)
    assert [offset for _, _, offset in rows] == offsets


@pytest.mark.parametrize("verb", [["cat", "--topic"], ["tail"]])
@pytest.mark.parametrize("expression", ["", "||", " || ", " ", "||||"])
def test_an_expression_without_a_tag_is_refused(verb: list[str], expression: str) -> None:
    ran = tieredstore(*verb, "other", "--tag", expression)
    assert f"--tag {expression!r}: no tag in it" in one_line(ran)
    assert ran.code == 2


def test_tags_of_one_hash_are_told_apart(tmp_path: Path) -> None:
    """Tags with the same hash, such as `Aa` and `BB`, are distinguished."""
    from tests.kit.tier_builder import TierBuilder, message

    builder = TierBuilder(tmp_path)
    builder.queue("t", 0, [message("t", 0, n, tags=tag) for n, tag in enumerate(["Aa", "BB"])])
    for tag, offsets in (("Aa", [0]), ("BB", [1]), ("Aa || BB", [0, 1])):
        assert [n for _, _, n in found(builder.built.url, "--topic", "t", "--tag", tag)] == offsets


def test_the_table_of_several_topics_begins_with_the_topic(tier: str) -> None:
    head = tieredstore("cat", "--tier", tier, "--topic", "ord*", "--limit", 1).out.split()[0]
    assert head == "topic"
    one = tieredstore("cat", "--tier", tier, "--topic", "orders", "--limit", 1)
    assert one.out.split()[0] == "queue_id"


def test_nothing_found_names_the_topics(tier: str) -> None:
    ran = tieredstore("cat", "--tier", tier, "--topic", "ord*,other", "--tag", "none")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "tieredstore: the topics ord*, other have no such message\n"
