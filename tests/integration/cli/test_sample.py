"""`tieredstore sample` writes a small tier that every other verb can use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tieredstore.errors import Invalid
from tieredstore.jobs.offloading.unchanged import SEEN_FILE
from tieredstore.jobs.sampling.shop import Shop, make_messages
from tieredstore.jobs.sampling.write import START, write_sample

SHOP = Shop(round(START.timestamp() * 1000), days=2, orders_per_day=60)


def commit_log_files(folder: Path) -> dict[str, bytes]:
    files = (folder / "tier").rglob("COMMIT_LOG/[!.]*")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_equal_seeds_write_equal_tiers_and_another_seed_another_one(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_sample(tmp_path / name, SHOP)
    one = commit_log_files(tmp_path / "one")
    assert len(one) == 8
    assert one == commit_log_files(tmp_path / "two")
    other = make_messages(Shop(SHOP.start_ms, SHOP.days, SHOP.orders_per_day, seed=2))
    assert [m.body for m in other] != [m.body for m in make_messages(SHOP)]


def test_the_sample_has_what_examples_need(tmp_path: Path) -> None:
    report = write_sample(tmp_path / "shop", SHOP)
    topics: Any = report["topics"]
    counts = {row["topic"]: row["messages"] for row in topics}
    assert list(counts) == ["%DLQ%billing", "%RETRY%billing", "events", "orders", "payments"]
    tier = tieredstore.open(str(report["tier"]))
    columns = ["topic", "msg_id", "keys", "tags", "store_timestamp", "body", "reconsume_times"]
    rows = [
        row
        for topic in counts
        for row in tier.scan(topic, columns=[*columns, "properties"]).to_arrow().to_pylist()
    ]
    assert len(rows) == sum(counts.values()) == report["messages"]
    assert all(row["tags"] and row["keys"] and row["msg_id"] for row in rows)
    assert all(json.loads(row["body"]) for row in rows)
    days = {row["store_timestamp"].date() for row in rows}
    assert [day.isoformat() for day in sorted(days)] == ["2026-03-02", "2026-03-03"]
    retries = [row for row in rows if row["topic"] == "%RETRY%billing"]
    assert {row["reconsume_times"] for row in retries} >= {1, 2}
    assert all(dict(row["properties"])["RETRY_TOPIC"] == "payments" for row in retries)
    assert {dict(row["properties"]).get("channel") for row in rows if row["topic"] == "orders"} == {
        "web",
        "app",
        "shop",
    }
    assert tier.verify()["damage"] == 0


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(Invalid, match="expected an empty or missing folder, found files"):
        write_sample(tmp_path, SHOP)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_second_sample_names_the_tier_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    write_sample(folder, SHOP)
    with pytest.raises(Invalid, match="found a sample") as refused:
        write_sample(folder, SHOP)
    assert str(refused.value).endswith(f"or read this one (--tier {folder / 'tier'})")
    (folder / "state" / SEEN_FILE).unlink()  # as if the first had been killed
    with pytest.raises(Invalid, match=r"found files\. Choose another folder$"):
        write_sample(folder, SHOP)


def test_the_verb_prints_where_the_tier_is(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tieredstore", "sample", str(tmp_path / "shop")]
    options = ["--days", "1", "--orders-per-day", "10", "--start", "2026-01-31", "--seed", "7"]
    done = subprocess.run(
        [*command, *options, "--output", "json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tier"] == (tmp_path / "shop" / "tier").as_uri()
    assert report["from"].startswith("2026-01-31")
    assert report["until"].startswith("2026-01-31")
    query = [*command[:3], "query", "--tier", report["tier"], "--state", report["state"]]
    found = subprocess.run(
        [*query, "--topic", "orders", "--key", "o-1003"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "o-1003" in found.stdout, found.stderr
