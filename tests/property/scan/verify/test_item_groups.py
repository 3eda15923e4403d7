"""The index items of many small queues are checked together. The findings are the same as when each
queue is checked alone."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

import pytest

from tests.kit.tier_builder import CLUSTER, TierBuilder, message
from tieredstore.message.index.tiered import COMPACTED_ITEM_SIZE
from tieredstore.message.layout import PHYSICAL_OFFSET_POSITION, QUEUE_ID_POSITION
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.findings import Finding
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.verify import item_groups
from tieredstore.scan.verify.verification import VerifyReport, verify

TOPICS = [*(f"topic-{number}" for number in range(8)), "longer-topic", "thème"]
ITEMS = 2 * sum(1 + number % 4 for number in range(len(TOPICS)))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    builder = TierBuilder(tmp_path_factory.mktemp("small"), messages_per_segment=4)
    for number, topic in enumerate(TOPICS):
        host = ("fe80::1", 9) if number % 3 == 0 else ("10.0.0.1", 9)
        sent = [message(topic, 0, n, born_host=host) for n in range(1 + number % 4)]
        builder.queue(topic, 0, sent)
    builder.index()
    builder.built.metadata.flush()
    return builder.built.root / "tier"


def run(root: Path, most_bytes: int) -> tuple[VerifyReport, list[Finding]]:
    provider = PosixProvider(root, CLUSTER, fsync=False)
    found: list[Finding] = []
    with mock.patch.object(item_groups, "MOST_BYTES", most_bytes):
        report = verify(provider, load_catalogue(provider, None), found.append)
    provider.close()
    return report, found


def test_together_and_alone_give_the_same_of_a_sound_tier(root: Path) -> None:
    together, alone = run(root, 1 << 20), run(root, 0)
    assert together == alone
    assert (together[0].index_items, together[1]) == (ITEMS, [])


@pytest.mark.parametrize("seed", range(60))
def test_together_and_alone_give_the_same_of_a_damaged_tier(root: Path, seed: int) -> None:
    chance = random.Random(seed)
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and p.stat().st_size]
    indexes = [p for p in files if "rmq_sys_INDEX" in str(p)]
    assert indexes
    path = chance.choice(indexes if chance.random() < 0.7 else files)
    kept = path.read_bytes()
    data = bytearray(kept)
    try:
        for _ in range(chance.randint(1, 3)):
            # Items are at the end of an index file.
            low = len(data) - ITEMS * COMPACTED_ITEM_SIZE if path in indexes else 0
            data[chance.randrange(low, len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        assert run(root, 1 << 20) == run(root, 0)
    finally:
        path.write_bytes(kept)


@pytest.mark.parametrize("field", [0, 4, QUEUE_ID_POSITION, PHYSICAL_OFFSET_POSITION, "topic"])
def test_together_finds_each_field_that_settles_whose_message_it_is(
    root: Path, field: int | str
) -> None:
    log = min(p for p in root.rglob("*") if p.is_file() and b"topic-5" in p.read_bytes())
    kept = log.read_bytes()
    at = kept.index(b"\x07topic-5") + 7 if isinstance(field, str) else field + 3
    try:
        log.write_bytes(kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :])
        report, found = run(root, 1 << 20)
        assert (report, found) == run(root, 0)
        assert report.index_items == ITEMS - 2
        assert "index-item" in report.kinds
    finally:
        log.write_bytes(kept)
