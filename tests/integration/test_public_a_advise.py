"""`tieredstore advise` runs on the store of the public-a fixture, and on the tier that Java made of
it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import tieredstore
from tieredstore.config import load_broker_conf

TAKEN_MS = (1_795_266_316_000, 1_795_266_330_500)
"""Period that includes the times of all messages, in ms."""


SMALL = ("tieredStoreCommitLogMaxSize", "tieredStoreConsumeQueueMaxSize", "tieredStoreGroupCommit")
"""Keys whose values in the fixture's broker.conf suit only its small store. The tests remove these
keys, so that the default values apply."""


def _write_offsets(public_a: Path, path: Path, share: float) -> Path:
    """Write consumer offsets: every group has read the given share of each queue."""
    manifest: dict[str, Any] = json.loads((public_a / "manifest.json").read_bytes())
    ends: dict[str, dict[str, int]] = {}
    for row in manifest["messages"]:
        if row["topic"].startswith("pub_"):
            queues = ends.setdefault(f"{row['topic']}@readers", {})
            queue_id = str(row["queueId"])
            queues[queue_id] = max(queues.get(queue_id, 0), row["queueOffset"] + 1)
    for queues in ends.values():
        for queue_id, end in queues.items():
            queues[queue_id] = int(end * share)
    path.write_text(json.dumps({"offsetTable": ends}))
    return path


@pytest.fixture
def arguments(public_a: Path, tmp_path: Path) -> list[object]:
    store = tmp_path / "store"
    shutil.copytree(public_a / "store", store)
    offsets = [
        f"{_write_offsets(public_a, tmp_path / f'{share}.json', share)}@{taken_ms}"
        for share, taken_ms in zip((0, 1), TAKEN_MS, strict=True)
    ]
    config = tmp_path / "broker.conf"
    lines = (public_a / "broker.conf").read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith(SMALL)))
    return [
        store, "--tier", public_a / "tiered", "--state", store, "--config",
        config, "--offsets", offsets[0], "--offsets", offsets[1],
    ]  # fmt: skip


def test_advice_of_a_store_and_its_tier_as_json(
    arguments: list[object], public_a: Path, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("write = 5.0\nread = 0.4\nstorage = 0.023\ndisk = 0.1\n")
    before = sorted(
        (str(path), path.stat().st_mtime_ns, path.stat().st_size)
        for folder in (public_a / "tiered", tmp_path / "store")
        for path in folder.rglob("*")
    )
    ran = tieredstore(
        "advise", *arguments, "--object-store", "--prices", prices, "--output", "json"
    )
    assert ran.code == 0, ran.err
    record = ran.record
    assert record["readings"] > 5
    assert record["messages_per_s"] * 14.5 == pytest.approx(2171, rel=0.05)
    now = record["choices"][0]
    assert (now["level"], now["batch_messages"], now["interval_s"]) == ("FORCE", 4096, 600)
    assert record["choices"][1]["cost_usd"] < now["cost_usd"]
    topics = {row["topic"] for row in record["topics"]}
    assert {"pub_normal", "pub_big"} <= topics
    assert not any(topic.startswith(("SCHEDULE_TOPIC", "RMQ_SYS", "%")) for topic in topics)
    fragment = tmp_path / "better.conf"
    fragment.write_text(record["broker_conf"])
    assert load_broker_conf(fragment).warnings == ()
    after = sorted(
        (str(path), path.stat().st_mtime_ns, path.stat().st_size)
        for folder in (public_a / "tiered", tmp_path / "store")
        for path in folder.rglob("*")
    )
    assert after == before


def test_advice_for_plain_files_as_a_table(arguments: list[object]) -> None:
    ran = tieredstore("advise", *arguments, "--top", "2", "--max-loss", "10m")
    assert ran.code == 0, ran.err
    assert "is_priced" in ran.out
    assert "# broker.conf" in ran.out
    assert "NOT_IN_DISK" in ran.out
    assert "Write" in ran.out


def test_what_is_missing_or_wrong_is_told(arguments: list[object], tmp_path: Path) -> None:
    few = tieredstore("advise", *arguments[:-2])
    assert few.code != 0
    assert "at least two" in few.err
    bad = tmp_path / "prices.toml"
    bad.write_text("gold = 3\n")
    priced = tieredstore("advise", *arguments, "--prices", bad)
    assert priced.code != 0
    assert "gold" in priced.err or "names:" in priced.err
    slow = tieredstore("advise", *arguments, "--latency-ms", "fast")
    assert "expected P50" in slow.err
