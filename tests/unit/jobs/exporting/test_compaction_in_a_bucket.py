"""Tests of compactions in an object store: kills at each request, concurrent readers, and late
exports."""

from __future__ import annotations

import io
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.compaction import ROUNDS, compact, missing
from tests.kit.jobs.export import Export, Place, places_of
from tests.kit.jobs.kills import Killed
from tests.kit.jobs.object_target import Bucket
from tieredstore.jobs.exporting.request import Format
from tieredstore.jobs.exporting.targets import storage
from tieredstore.jobs.exporting.targets.parquet_log import CommitLog

TO = "s3://bucket/lake"
WRITES = {"PUT", "COPY", "DELETE"}


class BucketExport(Export):
    """Exports to an in-memory bucket."""

    def export(self, **changes: Any) -> dict[str, Any]:
        return self.run(to=TO, task_bytes=1 << 20, **changes)


@pytest.fixture
def exported(tmp_path: Path, tier: GrowingTier) -> BucketExport:
    return BucketExport(tmp_path / "exported", Format.PARQUET, tier)


def fill(bucket: Bucket, exported: BucketExport, patch: pytest.MonkeyPatch) -> None:
    """Run several small exports of a tier that grows between them."""
    patch.setattr(storage, "connect_s3", bucket.connect)
    tier = exported.tier
    for number in range(ROUNDS):
        exported.export()
        if number < ROUNDS - 1:
            tier.append("orders", number % 2, 3)
            tier.append("other", 0, 2)


def copy_of(bucket: Bucket, page_keys: int = 1000) -> Bucket:
    copy = Bucket(page_keys)
    for info in bucket.objects.list(""):
        data = bucket.objects.get_range(info.key, 0, 1 << 40)
        assert data is not None
        copy.objects.put_if_absent(info.key, [data], {})
    return copy


def places_in(key: str, data: bytes) -> Counter[Place]:
    topic = key.split("topic=")[1].split("/", maxsplit=1)[0]
    rows = pq.ParquetFile(io.BytesIO(data)).read(["queue_id", "queue_offset"]).to_pylist()
    return Counter((topic, row["queue_id"], row["queue_offset"]) for row in rows)


def places_of_bucket(bucket: Bucket) -> Counter[Place]:
    found: Counter[Place] = Counter()
    for key, data in bucket.data_files().items():
        found += places_in(key, data)
    return found


def staged(bucket: Bucket) -> list[str]:
    return [info.key for info in bucket.objects.list("lake/_tieredstore/staging/")]


class KillAt:
    """Kills a process before write number `at`, counted from 0. No thread of the process writes
    after that."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.writes: list[str] = []

    def __call__(self, operation: str, key: str) -> None:
        if operation in WRITES:
            if len(self.writes) >= self.number:
                raise Killed
            self.writes.append(f"{operation} {key}")


@pytest.mark.parametrize("ended_by", ["compaction", "export"])
def test_a_kill_at_any_request_loses_nothing_and_doubles_nothing(
    ended_by: str, exported: BucketExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Bucket()
    fill(full, exported, monkeypatch)
    before = places_of(exported.tier)
    if ended_by == "export":
        exported.tier.append("orders", 0, 5)
    for number in range(1000):
        bucket = copy_of(full)
        monkeypatch.setattr(storage, "connect_s3", bucket.connect)
        kill = KillAt(number)
        bucket.on_request = kill
        try:
            compact(TO)
            break
        except Killed:
            pass
        bucket.on_request = lambda operation, key: None
        where = f"killed at {number}, behind {kill.writes[-1:]}"
        assert not missing(before, places_of_bucket(bucket)), where
        if ended_by == "export":
            assert exported.export()["rows"] == 5
        else:
            compact(TO)
        assert places_of_bucket(bucket) == places_of(exported.tier), where
        compact(TO)
        assert places_of_bucket(bucket) == places_of(exported.tier), where
        assert (len(bucket.data_files()), staged(bucket)) == (2, []), where
    assert number == len(kill.writes) > 15, kill.writes


def test_a_reader_that_lists_meanwhile_misses_no_row(
    exported: BucketExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that lists a target page by page during a compaction misses no rows."""
    full = Bucket()
    fill(full, exported, monkeypatch)
    expected = places_of(exported.tier)
    contents = full.data_files()
    bucket = copy_of(full, page_keys=1)
    monkeypatch.setattr(storage, "connect_s3", bucket.connect)
    readers: list[tuple[int, Iterator[str], list[str]]] = []
    writes = itertools.count()
    lock = threading.Lock()

    def read_on(operation: str, key: str) -> None:
        del key
        if operation not in WRITES:
            return
        with lock:
            readers.extend((pace, iter_keys(bucket), []) for pace in (1, 3, 9))
            number = next(writes)
            for pace, keys, found in readers:
                if number % pace == 0:
                    found += [key for key in [next(keys, None)] if key is not None]

    bucket.on_request = read_on
    compact(TO)
    contents |= bucket.data_files()
    assert len(readers) > 45
    for _, keys, found in readers:
        rows: Counter[Place] = Counter()
        for key in (*found, *keys):
            rows += places_in(key, contents[key])
        assert not missing(expected, rows)


def iter_keys(bucket: Bucket) -> Iterator[str]:
    for info in bucket.objects.list("lake/topic="):
        yield info.key


def test_who_publishes_an_export_late_puts_nothing_back(
    exported: BucketExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export that publishes late does not restore a file that has been merged and removed."""
    bucket = Bucket()
    fill(bucket, exported, monkeypatch)
    exported.tier.append("orders", 0, 5)

    def compact_first(operation: str, key: str) -> None:
        if operation == "COPY" and not key.startswith("_"):
            bucket.on_request = lambda operation, key: None
            assert compact(TO)["merged_files"] == 2 * ROUNDS + 1

    bucket.on_request = compact_first
    exported.export()
    assert places_of_bucket(bucket) == places_of(exported.tier)
    assert len(bucket.data_files()) == 2
    assert exported.export()["rows"] == 0


def test_what_was_staged_is_gone_before_the_files_are(
    exported: BucketExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction deletes staged files before merged ones, so that a late export cannot restore a
    merged file."""
    bucket = Bucket()
    fill(bucket, exported, monkeypatch)
    exported.tier.append("orders", 0, 5)

    def compact_first(operation: str, key: str) -> None:
        if operation == "COPY" and not key.startswith("_"):
            bucket.on_request = lambda operation, key: None
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(CommitLog, "clear", CommitLog.publish_last)
                assert compact(TO)["merged_files"] == 2 * ROUNDS + 1

    bucket.on_request = compact_first
    exported.export()
    assert places_of_bucket(bucket) == places_of(exported.tier)


def test_who_publishes_a_compaction_late_puts_nothing_back(
    exported: BucketExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket()
    fill(bucket, exported, monkeypatch)

    def go_on_first(operation: str, key: str) -> None:
        if operation == "COPY" and not key.startswith("_"):
            bucket.on_request = lambda operation, key: None
            exported.tier.append("orders", 0, 5)
            exported.tier.append("other", 0, 5)
            exported.export()
            assert compact(TO)["merged_files"] == 4

    bucket.on_request = go_on_first
    compact(TO)
    assert places_of_bucket(bucket) == places_of(exported.tier)
    assert (len(bucket.data_files()), staged(bucket)) == (2, [])
