"""Tests of `query` on a tier whose index is incomplete or unreadable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tieredstore
from tests.kit.command_line import Ran
from tests.kit.command_line import tieredstore as command
from tests.kit.growing_tier import GrowingTier
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.scan.findings import Finding
from tieredstore.scan.keys.search import find_by_key
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.verify.index import VerifyIndex, check_index_file
from tieredstore.scan.verify.topic_probes import TopicProbes

SLOTS = {"tieredStoreIndexFileMaxHashSlotNum": "64", "tieredStoreIndexFileMaxIndexNum": "2048"}


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    """A tier with 300 messages, the first 150 of which are indexed."""
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 150, body_bytes=4000)
    tier.metadata.flush()
    tieredstore.open(tier.url, state=tmp_path / "state", properties=SLOTS).rebuild_index()
    tier.append("orders", 0, 150, body_bytes=4000)
    return tier


def query(tier: GrowingTier, key: str, *more: object) -> Ran:
    by = ("--msg-id", key) if key.startswith("AAA") else ("--topic", "orders", "--key", key)
    return command("query", "--tier", tier.url, *by, "--output", "ndjson", *more)


def test_j45_what_the_index_does_not_have_is_found(tier: GrowingTier) -> None:
    for key, offset in (("KEY-5", 5), ("KEY-250", 250), (f"{299:012d}".rjust(32, "A"), 299)):
        ran = query(tier, key)
        assert [row["queue_offset"] for row in ran.rows] == [offset]
        assert ran.code == 0
        assert ran.err == ""
    assert "read 150 messages that the index does not name" in query(tier, "KEY-999").err
    assert query(tier, "KEY-250", "--since", 1).rows[0]["queue_offset"] == 250
    assert query(tier, "KEY-250", "--since", "now").code == 3


def test_j45_absent_not_looked_at_and_unreadable_are_told_apart(tier: GrowingTier) -> None:
    assert query(tier, "KEY-999").code == 3
    ran = query(tier, "KEY-250", "--unindexed-bytes", 100_000)
    assert ran.code == 9
    assert "more were not looked at" in ran.err
    assert query(tier, "KEY-299", "--unindexed-bytes", 100_000).code == 0
    assert query(tier, "KEY-5", "--unindexed-bytes", 0).code == 0
    [index] = (tier.root / "tier").rglob("INDEX/[!.]*")
    index.write_bytes(index.read_bytes()[:50])
    for key in ("KEY-250", "KEY-999"):
        ran = query(tier, key)
        assert ran.code == 1
        assert len(ran.rows) == (key == "KEY-250")
        assert "INDEX" in ran.err


def test_j44_a_query_leaves_damaged_messages_out_when_it_is_told_to(tier: GrowingTier) -> None:
    """With the option to skip damage, a query omits damaged messages, whether indexed or not."""
    [path] = tier.segments("orders", 0, FileSegmentType.COMMIT_LOG)
    units = tier.segments("orders", 0, FileSegmentType.CONSUME_QUEUE)[0].read_bytes()
    data = bytearray(path.read_bytes())
    for number in (5, 250):
        data[int.from_bytes(units[20 * number :][:8], "big") + 200] ^= 1
    path.write_bytes(data)
    for key in ("KEY-5", "KEY-250"):
        failed = query(tier, key)
        assert (failed.code, failed.rows) == (1, [])
        assert "tieredstore: error: " in failed.err
        skipped = query(tier, key, "--on-damage", "skip")
        assert (skipped.code, skipped.rows) == (1, [])
        assert "error: " not in skipped.err
        assert "CRC" in skipped.err
    for more in ((), ("--on-damage", "skip")):
        # A damaged message might have had the key as well. It counts as examined unless a limit
        # ends that.
        ran = query(tier, "KEY-6", *more)
        assert (ran.code, [row["queue_offset"] for row in ran.rows]) == (1, [6])
        ran = query(tier, "KEY-6", "--limit", 1, *more)
        assert (ran.code, [row["queue_offset"] for row in ran.rows]) == (0, [6])


def test_j45_all_messages_with_an_id_are_found_and_no_message_with_such_a_key(
    tmp_path: Path,
) -> None:
    """A query by id returns every message with that id. As in Java, it ignores messages that have
    the id among their KEYS."""
    tier, first = GrowingTier(tmp_path), 1_700_000_000_000
    for run in range(2):  # only the first is in the index
        ids = [f"ID-{number}" for number in range(150)]
        ids[140:] = ["KEY-5", "KEY-6", "twice", "twice", *ids[144:]]
        times = [first + 150 * run + number for number in range(150)]
        tier.append("orders", 0, 150, body_bytes=4000, uniq_keys=ids, times_ms=times)
        tier.metadata.flush()
        if not run:
            tieredstore.open(tier.url, state=tmp_path / "state", properties=SLOTS).rebuild_index()

    def offsets(*args: object) -> list[int]:
        ran = command("query", "--tier", tier.url, "--output", "ndjson", *args)
        assert (ran.code, ran.err) == (0, "")
        return [row["queue_offset"] for row in ran.rows]

    assert offsets("--msg-id", "twice") == [142, 143, 292, 293]
    assert offsets("--msg-id", "KEY-5") == [140, 290]
    assert offsets("--topic", "orders", "--key", "KEY-5") == [5, 140, 290]
    assert offsets("--msg-id", "twice", "--since", first + 143) == [143, 292, 293]
    assert offsets("--msg-id", "twice", "--until", first + 293) == [142, 143, 292]


@pytest.mark.parametrize("time_ms", [-(2**63), -5, 2**62, 2**63 - 1])
def test_j30_a_query_without_times_finds_messages_of_any_time(tmp_path: Path, time_ms: int) -> None:
    tier, first = GrowingTier(tmp_path), 1_700_000_000_000
    times = [first + number for number in range(150)]
    times[100] = time_ms
    tier.append("orders", 0, 150, body_bytes=4000, times_ms=times)
    tier.metadata.flush()
    tieredstore.open(tier.url, state=tmp_path / "state", properties=SLOTS).rebuild_index()
    [row] = query(tier, "KEY-100").rows
    assert row["queue_offset"] == 100
    for id_ in row["msg_id"], row["offset_msg_id"]:
        by_id = command("query", "--tier", tier.url, "--msg-id", id_, "--output", "ndjson")
        assert by_id.rows == [row]


@pytest.mark.parametrize("is_expired", [False, True])
def test_j72_index_files_that_go_while_a_key_is_searched_are_no_damage(
    tmp_path: Path, *, is_expired: bool
) -> None:
    """Index files that are merged or expire during a search are not reported as damage."""
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 300, body_bytes=4000)
    tier.metadata.flush()
    small = SLOTS | {"tieredStoreIndexFileMaxIndexNum": "256"}
    tieredstore.open(tier.url, state=tmp_path / "state", properties=small).rebuild_index()
    catalogue = load_catalogue(tier.provider)
    assert len(catalogue.indexes["broker-a"]) > 2
    files = sorted((tmp_path / "tier").rglob("INDEX/[!.]*"), key=lambda path: path.name[-20:])
    if is_expired:
        files[0].unlink()
    else:
        whole = tieredstore.open(tier.url, state=tmp_path / "state", properties=SLOTS)
        assert whole.compact_index()["merged_files"] == len(files)
    findings: list[Finding] = []
    places = tier.provider, catalogue, catalogue.queues
    for number in (0, 150, 299):
        hits = find_by_key(*places, "orders", f"KEY-{number}", on_finding=findings.append)
        if number or not is_expired:
            assert [hit.message.queue_offset for hit in hits] == [number]
    assert findings == []


def test_an_index_file_that_is_being_uploaded_is_no_damage(
    tier: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are complete while an index file is uploaded. The query reports that the file's keys
    are not indexed yet."""
    [index] = (tier.root / "tier").rglob("INDEX/[!.]*")
    data = index.read_bytes()
    # The last position lies in the slots: its size would also fit fewer slots.
    sizes = (0, 20, 28, 50, 28 + 8 * 11, len(data) - 28)

    def grow(_: float) -> None:
        size = index.stat().st_size
        index.write_bytes(data[: size + 8])

    monkeypatch.setattr("time.sleep", grow)
    for size in sizes:
        for key, offset in (("KEY-5", 5), ("KEY-250", 250), ("KEY-999", None)):
            index.write_bytes(data[:size])
            ran = query(tier, key)
            found = [row["queue_offset"] for row in ran.rows]
            assert (ran.code, found) == ((0, [offset]) if offset is not None else (3, []))
            assert "not indexed yet" in ran.err
        index.write_bytes(data[:size])
        ran = query(tier, "KEY-5", "--unindexed-bytes", 100_000)
        assert ran.code == 9
        assert "not indexed yet" in ran.err


def test_an_index_file_whose_upload_ends_during_the_query_is_searched(
    tier: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    [index] = (tier.root / "tier").rglob("INDEX/[!.]*")
    data = index.read_bytes()
    index.write_bytes(data[:50])
    monkeypatch.setattr("time.sleep", lambda _: index.write_bytes(data))
    ran = query(tier, "KEY-5", "--unindexed-bytes", 0)
    assert (ran.code, [row["queue_offset"] for row in ran.rows]) == (0, [5])
    assert "not indexed yet" not in ran.err


def test_a_scan_by_keys_reads_past_an_index_file_that_is_being_uploaded(
    tier: GrowingTier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    [index] = (tier.root / "tier").rglob("INDEX/[!.]*")
    data = index.read_bytes()
    index.write_bytes(data[:50])
    monkeypatch.setattr("time.sleep", lambda _: index.write_bytes(data[:100]))
    rows = tieredstore.open(tier.url).scan("orders", keys=["KEY-5", "KEY-250"]).to_arrow()
    assert rows["queue_offset"].to_pylist() == [5, 250]
    assert "not indexed yet" in caplog.text
    assert "damaged" not in caplog.text


def test_an_index_file_that_grows_while_it_is_verified_is_no_damage(tier: GrowingTier) -> None:
    """An index file that grows after the listing is not reported as damaged."""
    catalogue = load_catalogue(tier.provider)
    [extent] = catalogue.indexes["broker-a"]
    short = replace(extent, size_bytes=extent.size_bytes - 8, listing=None)
    file = VerifyIndex("broker-a", short, catalogue, is_last=True, probes=TopicProbes())
    assert check_index_file(tier.provider, file, lambda *_: None).findings == b""


def test_a_local_index_file_that_is_being_created_is_empty(tier: GrowingTier) -> None:
    """An index file without a header is treated as empty, because its owner sets the size before it
    writes the header."""
    folder = tier.root / "state" / "tiered_index_file"
    folder.mkdir(exist_ok=True)
    for size in (0, 20, 28 + 64 * 8 + 2048 * 32):
        (folder / "1700000000000").write_bytes(bytes(size))
        ran = query(tier, "KEY-250", "--state", tier.root / "state")
        assert (ran.code, [row["queue_offset"] for row in ran.rows]) == (0, [250])
