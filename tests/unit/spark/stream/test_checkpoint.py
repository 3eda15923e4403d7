"""Offsets can be encoded for a checkpoint and decoded again."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tieredstore.errors import Invalid
from tieredstore.spark.offsets import QueueKey
from tieredstore.spark.stream.checkpoint import (
    Incarnation,
    Position,
    StreamOffset,
    parse_starting_offsets,
)

KNOWN = Incarnation.of_message(3, 111, 1_700_000_000_123, 258, 42)
POSITIONS = {("orders", "b", 1): Position(4), ("orders", "b", 0): Position(112, KNOWN)}


def through_json(offset: StreamOffset) -> StreamOffset:
    return StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))


def test_a_checkpoint_gives_back_what_went_in() -> None:
    offset = StreamOffset(POSITIONS, {("orders", "b", 1): 2}, ("orders", "b", 0))
    assert through_json(offset) == offset
    # Spark compares texts: the same positions are the same text.
    turned = StreamOffset(dict(reversed(POSITIONS.items())), offset.begins, offset.place)
    assert json.dumps(turned.to_json()) == json.dumps(offset.to_json())


def test_an_offset_is_text_that_people_can_read() -> None:
    mark = StreamOffset({("t", "b", 0): Position(112, KNOWN)}).to_json()["t"].partition(".")[2]
    assert StreamOffset(POSITIONS, {("orders", "b", 1): 2}, ("orders", "b", 1)).to_json() == {
        "@brokers": ["b"],
        "@next": ["orders", "b", 1],
        "orders": f"#3 112.{mark} # 4<2",
    }
    assert len(mark) == 5


@pytest.mark.parametrize("seed", range(20))
def test_any_offset_comes_back(seed: int) -> None:
    dice = random.Random(seed)
    brokers, topics = ["a", "b;/ =", "c"], ["orders", "%RETRY%g", "a b"]
    positions: dict[QueueKey, Position] = {}
    begins: dict[QueueKey, int] = {}
    for _ in range(dice.randint(0, 30)):
        key = dice.choice(topics), dice.choice(brokers), dice.randint(0, 9)
        offset = dice.choice([0, 1, 7, 2**63 - 1])
        message = dice.choice([None, offset, offset - 1, offset - 2, offset - 999])
        mark = None if message is None else dice.getrandbits(30)
        known = Incarnation(dice.choice([None, 0, 7]), message, mark)
        positions[key] = Position(offset, known)
        if dice.random() < 0.3:
            begins[key] = dice.randint(0, 9)
    place = dice.choice([None, *positions])
    offset_ = StreamOffset(positions, begins, place)
    assert through_json(offset_) == offset_


@pytest.mark.parametrize(("topics", "queues"), [(1, 8), (1000, 1), (200, 16)])
def test_a_queue_is_at_most_20_bytes_beside_its_topics_name(topics: int, queues: int) -> None:
    positions = {
        (f"topic-{topic:05d}", "broker-a", queue): Position(
            9_876_543_210, Incarnation.of_message(None, 9_876_543_209, 1_700_000_000_000, 999, 7)
        )
        for topic in range(topics)
        for queue in range(queues)
    }
    text = json.dumps(StreamOffset(positions).to_json())
    names = topics * len('"topic-00000": ') + len('{"@brokers": ["broker-a"], }')
    assert len(text) - names <= 20 * len(positions)


def test_a_streams_offset_may_start_another_stream() -> None:
    wanted = {("orders", "b", 0): 112, ("orders", "b", 1): 4}
    text = json.dumps(StreamOffset(POSITIONS).to_json())
    assert parse_starting_offsets(text, "startingOffsets") == wanted
    assert parse_starting_offsets(json.dumps(OLD), "startingOffsets") == wanted
    users = '{"orders": {"b": {"0": -2}}}'
    assert parse_starting_offsets(users, "startingOffsets") == {("orders", "b", 0): -2}


OLD: dict[str, Any] = {
    "orders": {"b": {"0": 112, "1": 4}},
    "@incarnations": {
        "orders": {
            "b": {
                "0": {
                    "topic_id": 3,
                    "message": 111,
                    "stored_ms": 1_700_000_000_123,
                    "size": 258,
                    "body_crc": 42,
                },
                "1": {},
            }
        }
    },
    "@begins": {"orders": {"b": {"1": 2}}},
}
"""An offset in the form of an older version."""


def test_a_checkpoint_of_an_older_version_is_read() -> None:
    assert StreamOffset.from_json(OLD) == StreamOffset(POSITIONS, {("orders", "b", 1): 2})


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ({"orders": 7}, "the checkpoint's offset: orders: expected an object"),
        ({"orders": {"b": {"0": 7}}, "@incarnations": {"orders": {"b": {"0": 7}}}}, "@incarn"),
        ({"@brokers": ["b"], "orders": "7.abc"}, "not one that this version wrote"),
        ({"@brokers": ["b"], "orders": "1/7"}, "not one that this version wrote"),
        ({"@brokers": ["b"], "orders": {"0": 7}}, "not one that this version wrote"),
        ({"@brokers": ["b"], "@next": 7}, "not one that this version wrote"),
    ],
)
def test_a_foreign_checkpoint_is_refused(offset: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        StreamOffset.from_json(offset)


def test_what_contradicts() -> None:
    unknown = Incarnation()
    assert not KNOWN.contradicts(KNOWN)
    assert not KNOWN.contradicts(unknown)
    assert not unknown.contradicts(KNOWN)
    assert KNOWN.contradicts(Incarnation(4))
    assert not KNOWN.contradicts(Incarnation(3))
    assert not KNOWN.contradicts(Incarnation.of_message(None, 110, 1, 2, 3))  # another message
    later = Incarnation.of_message(None, 111, 1_700_000_000_124, 258, 42)
    assert KNOWN.contradicts(later)
    text = "stored 2023-11-14T22:13:20.123Z (258 bytes, CRC 42)"
    assert str(KNOWN).startswith("topic id 3, message 111 with the mark ")
    assert str(KNOWN).endswith(text)
    assert str(unknown) == "nothing known of it"
