"""The separate code for blocks of few messages gives the same result as the general code."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.kit.tier.fetch import Tier
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import TieredStoreError
from tieredstore.tier.fetch import block_reading
from tieredstore.tier.fetch.block_reading import read_block
from tieredstore.tier.reading import run

COUNT = 20


def outcome(tier: Tier, limit_bytes: int, room_bytes: int) -> tuple[Any, ...]:
    try:
        block = run(read_block(tier.file(), 0, COUNT, limit_bytes, room_bytes=room_bytes))
    except TieredStoreError as error:
        return type(error), str(error)
    messages = [(bytes(message.raw), message.tags_code) for message in block.messages]
    taken = [block.take(offset, 3, 1 << 20) for offset in range(COUNT)]
    answers = [(len(some.messages), some.next_offset, some.size_bytes) for some in taken]
    return messages, list(block.offsets), block.end, block.weight, block.bad_count, answers


def both(
    tier: Tier, monkeypatch: pytest.MonkeyPatch, **limits: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    given = {"limit_bytes": 1 << 20, "room_bytes": 1 << 20, **limits}
    small = outcome(tier, **given)
    with monkeypatch.context() as patch:
        patch.setattr(block_reading, "SMALL_BLOCK_MESSAGES", 0)
        return small, outcome(tier, **given)


def test_both_ways_give_the_same_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = Tier(tmp_path)
    tier.add(COUNT, tags=("TagA", "TagB"))
    small, general = both(tier, monkeypatch)
    assert small == general
    assert len(small[0]) == COUNT


@pytest.mark.parametrize("limit", ["limit_bytes", "room_bytes"])
def test_both_ways_keep_to_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    tier = Tier(tmp_path)
    tier.add(COUNT)
    for size in (1, 500, 1000, 4000):
        small, general = both(tier, monkeypatch, **{limit: size})
        assert small == general
        assert 1 <= len(small[0]) <= COUNT


@pytest.mark.parametrize("type", [FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE])
def test_both_ways_agree_on_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type: FileSegmentType
) -> None:
    tier = Tier(tmp_path)
    tier.add(COUNT)
    content = tier.provider.content(type)
    source = random.Random(5)
    damaged = 0
    for _ in range(300):
        position = source.randrange(len(content))
        before = content[position]
        content[position] = source.randrange(256)
        small, general = both(tier, monkeypatch)
        content[position] = before
        assert small == general, position
        damaged += isinstance(small[0], list) and len(small[0]) < COUNT
    assert damaged > 20, "the damage must reach the checked bytes"
