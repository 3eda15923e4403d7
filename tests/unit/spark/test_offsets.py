"""Offsets as a checkpoint has them."""

from __future__ import annotations

import json

import pytest

from tieredstore.errors import Invalid
from tieredstore.spark.offsets import (
    Incarnation,
    Position,
    from_json,
    parse_offsets,
    to_json,
)
from tieredstore.spark.stream.admission import admit_one, shares

KNOWN = Incarnation(3, 111, 1_700_000_000_123, 258, 42)
POSITIONS = {("orders", "b", 1): Position(4), ("orders", "b", 0): Position(112, KNOWN)}


def test_a_checkpoint_gives_back_what_went_in() -> None:
    offset = to_json(POSITIONS)
    assert offset["orders"] == {"b": {"0": 112, "1": 4}}
    assert from_json(json.loads(json.dumps(offset))) == POSITIONS
    # Spark compares texts: the same positions are the same text.
    turned = dict(reversed(POSITIONS.items()))
    assert json.dumps(to_json(turned)) == json.dumps(offset)


def test_a_streams_offset_may_start_another_stream() -> None:
    found = parse_offsets(json.dumps(to_json(POSITIONS)), "startingOffsets")
    assert found == {("orders", "b", 0): 112, ("orders", "b", 1): 4}


def test_a_foreign_checkpoint_is_refused() -> None:
    with pytest.raises(Invalid, match="the checkpoint's offset: orders: expected an object"):
        from_json({"orders": 7})
    with pytest.raises(Invalid, match="@incarnations"):
        from_json({"orders": {"b": {"0": 7}}, "@incarnations": {"orders": {"b": {"0": 7}}}})


def test_what_contradicts() -> None:
    unknown = Incarnation()
    assert not KNOWN.contradicts(KNOWN)
    assert not KNOWN.contradicts(unknown)
    assert not unknown.contradicts(KNOWN)
    assert KNOWN.contradicts(Incarnation(4))
    assert not KNOWN.contradicts(Incarnation(3))
    assert not KNOWN.contradicts(Incarnation(None, 110, 1, 2, 3))  # another message
    assert KNOWN.contradicts(Incarnation(None, 111, 1_700_000_000_124, 258, 42))
    text = "topic id 3, message 111 stored 2023-11-14T22:13:20.123Z (258 bytes, CRC 42)"
    assert str(KNOWN) == text


def test_shares_are_fair_and_never_above_the_limit() -> None:
    assert shares({"a": 5, "b": 5}, 100) == {"a": 5, "b": 5}
    assert shares({"a": 90, "b": 10}, 10) == {"a": 9, "b": 1}
    assert shares({"a": 1, "b": 1, "c": 1}, 1) == {"a": 1, "b": 0, "c": 0}
    found = shares({"a": 7, "b": 11, "c": 2}, 13)
    assert sum(found.values()) == 13


def test_one_message_is_taken_where_nothing_would_be() -> None:
    ends = {"a": 4, "b": 7}
    admit_one(ends, {"a": 4, "b": 7}, ["a", "b"])
    assert ends == {"a": 5, "b": 7}
    admit_one(ends, {"a": 4, "b": 7}, ["a", "b"])
    assert ends == {"a": 5, "b": 7}
