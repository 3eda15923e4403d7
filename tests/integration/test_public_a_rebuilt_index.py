"""The index of Java's tier in the public-a fixture is rebuilt from the messages of the tier."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit import public_a as kit
from tests.kit.command_line import tieredstore
from tests.kit.oracle import Oracle
from tieredstore.message.index.tiered import (
    COMPACTED_ITEM_DTYPE,
    compacted_size,
    infer_slots,
    unpack_header,
)
from tieredstore.metadata.json_store import DefaultMetadataStore

EXPIRED_BELOW = kit.JAVA_TIER_LOW["pub_expire", 0]
Times = dict[tuple[int, int, int, int, int], int]
"""Store time, rounded to seconds, of each message. Key: hash, topic id, queue id, offset and
size."""


@pytest.fixture(scope="module")
def rebuilt(public_a: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rebuilt") / "public-a"
    shutil.copytree(public_a / "tiered", root / "tiered")
    shutil.copytree(public_a / "store" / "config", root / "store" / "config")
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.copy(public_a / "broker.conf", root / "broker.conf")
    done = tieredstore(
        "rebuild", "index", "--tier", f"file://{root / 'tiered'}", "--state", root / "store",
        "--config", root / "broker.conf", "--work", root / "work", "--force", "--workers", 1,
        "--output", "json",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert (done.record["messages"], done.record["items"]) == (1759, 5262)
    return root


@pytest.fixture(scope="module")
def tier(rebuilt: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kit.JavaTier]:
    tier = kit.JavaTier(rebuilt, tmp_path_factory.mktemp("rebuilt-tier"))
    yield tier
    tier.close()


def items(root: Path) -> Times:
    found: Times = {}
    for path in (root / "tiered").rglob("rmq_sys_INDEX/0/INDEX/[!.]*"):
        data = path.read_bytes()
        header = unpack_header(data)
        slots = infer_slots(len(data), header.items)
        assert slots == 200
        rows = np.frombuffer(data, COMPACTED_ITEM_DTYPE, offset=compacted_size(slots, 0)).tolist()
        for row in rows:
            assert row[:5] not in found
            found[row[:5]] = header.begin_timestamp_ms + row[5] * 1000
    return found


def test_every_key_query_is_answered_right(
    tier: kit.JavaTier, public_a_manifest: dict[str, Any]
) -> None:
    rows = public_a_manifest["queries"]["byKey"]
    assert len(rows) > 100
    oracle = Oracle(public_a_manifest)
    assert kit.wrong_queries(rows, oracle, tier.fetcher.query_message, low=kit.JAVA_TIER_LOW) == []


def test_items_are_javas_but_for_expired_messages_and_javas_wrong_times(
    rebuilt: Path, public_a: Path, public_a_manifest: dict[str, Any]
) -> None:
    ours, java = items(rebuilt), items(public_a)
    metadata = DefaultMetadataStore(
        rebuilt / "store" / "config" / "tieredStoreMetadata.json", "labBroker", read_only=True
    )
    metadata.load()
    ids = {topic.topic: topic.topic_id for topic in metadata.topics()}
    left = java.keys() - ours.keys()
    assert ours.keys() <= java.keys()
    expired = [
        message
        for message in public_a_manifest["messages"]
        if message["topic"] == "pub_expire" and message["queueOffset"] < EXPIRED_BELOW
    ]
    assert len(left) == sum(
        len({message["uniqKey"], *(message["keys"] or "").split()} - {None}) for message in expired
    )
    assert {item[1] for item in left} == {ids["pub_expire"]}
    far = [item for item, time_ms in ours.items() if abs(time_ms - java[item]) > 1999]
    # D14: Java reads the store time inside the address of an IPv6 host.
    assert {item[1] for item in far} == {ids["pub_v6"]}


def test_verify_finds_nothing(rebuilt: Path) -> None:
    done = tieredstore(
        "verify", "--tier", f"file://{rebuilt / 'tiered'}", "--state", rebuilt / "store",
        "--config", rebuilt / "broker.conf", "--output", "json",
    )  # fmt: skip
    assert done.code == 0
    assert (done.record["damage"], done.record["notes"]) == (0, 0)
    assert done.record["index_items"] == 5262
