"""`cat --store` can read light queues, whose messages are in other topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore as command
from tests.kit.local_stores import plain, running, small_config

EACH = list(range(6))


@pytest.mark.parametrize(
    ("topic", "more", "found"),
    [
        ("*", (), EACH),
        ("*", ("--tail", 2), [4, 5]),
        ("orders", (), EACH),
        ("%LMQ%a", (), EACH),
        ("%LMQ%*", (), EACH * 2),
    ],
)
def test_j47_a_pattern_means_light_queues_only_by_their_prefix(
    tmp_path: Path, topic: str, more: tuple[object, ...], found: list[int]
) -> None:
    root = tmp_path / "store"
    with running(small_config(root, enable_lmq=True, enable_multi_dispatch=True)) as store:
        names = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
        for number in EACH:
            assert store.put_message(plain("orders", 0, number, properties=names)).ok
        store.wait_until_dispatched()
        store.flush()
    ran = command("cat", "--store", root, "--topic", topic, *more, "--output", "ndjson")
    assert (ran.code, [row["queue_offset"] for row in ran.rows]) == (0, found)
