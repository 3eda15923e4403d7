"""Exports omit duplicates within a queue, across queues, across runs, and after kills."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyiceberg.catalog import load_catalog

from tests.kit.growing_tier import START_MS, GrowingTier
from tests.kit.jobs.compaction import compact
from tests.kit.jobs.export import FORMATS, Export, Place
from tests.kit.tier_builder import flip
from tieredstore import jobs
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.jobs.exporting import job
from tieredstore.jobs.exporting.dedup import drops, keys
from tieredstore.jobs.exporting.dedup.keys import KeysOutcome, KeysTask, stage_keys
from tieredstore.jobs.exporting.request import Accept, Format
from tieredstore.jobs.exporting.work import WriteOutcome, WriteTask, write
from tieredstore.message.sysflag import COMPRESSED
from tieredstore.scan.findings import OnDamage
from tieredstore.scan.selection import Selection

WINDOW_MS = 60_000


@pytest.fixture
def source(tmp_path: Path) -> GrowingTier:
    return GrowingTier(tmp_path / "source")


def put(
    tier: GrowingTier, queue_id: int, *messages: tuple[str | None, float], topic: str = "orders"
) -> None:
    """Put messages with the given keys and store times in seconds."""
    tier.append(
        topic,
        queue_id,
        len(messages),
        uniq_keys=[key for key, _ in messages],
        times_ms=[START_MS + int(second * 1000) for _, second in messages],
    )


def export(tmp_path: Path, tier: GrowingTier, form: Format = Format.PARQUET) -> Export:
    return Export(tmp_path / "out", form, tier)


def run(exported: Export, **changes: Any) -> dict[str, Any]:
    return exported.run(**{"dedup_window_ms": WINDOW_MS, **changes})


def offsets(exported: Export, topic: str = "orders") -> list[tuple[int, int]]:
    """Return the queue and offset of each message in the target."""
    found = exported.places()
    assert set(found.values()) <= {1}
    return sorted(place[1:] for place in found if place[0] == topic)


def by_polars(exported: Export) -> Counter[Place]:
    match exported.form:
        case Format.PARQUET:
            found = pl.read_parquet(
                f"{exported.target}/topic=*/day=*/*.parquet", hive_partitioning=True
            )
        case Format.DELTA:
            found = pl.read_delta(str(exported.target))
        case Format.ICEBERG:
            catalog = load_catalog("test", **exported.catalog)
            found = pl.scan_iceberg(catalog.load_table("lake.messages")).collect()
            catalog.close()
    return Counter(found.select("topic", "queue_id", "queue_offset").rows())


def staged(exported: Export) -> list[Path]:
    return [path for kind in ("keys", "drops") for path in exported.root.rglob(f"*.{kind}")]


def test_of_messages_with_one_key_the_first_is_exported(
    tmp_path: Path, source: GrowingTier
) -> None:
    put(source, 0, ("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5), ("a", 6))
    exported = export(tmp_path, source)
    report = run(exported)
    assert (report["rows"], report["duplicates"], report["corrupt_messages"]) == (3, 3, 0)
    assert report["queues"][0]["until_offset"] == 6
    assert offsets(exported) == [(0, 0), (0, 1), (0, 3)]
    again = run(exported)
    assert (again["rows"], again["duplicates"], again["commit"]) == (0, 0, None)


@pytest.mark.parametrize("form", FORMATS)
def test_a_retry_that_went_to_another_queue_and_came_in_another_run(
    form: Format, tmp_path: Path, source: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    put(source, 0, ("a", 1), ("b", 9), ("c", 10))
    put(source, 1, ("d", 2), ("b", 3))
    put(source, 0, ("a", 1), topic="other")
    exported = export(tmp_path, source, form)
    assert run(exported)["duplicates"] == 1
    assert offsets(exported) == [(0, 0), (0, 2), (1, 0), (1, 1)]
    assert offsets(exported, "other") == [(0, 0)]
    put(source, 1, ("e", 20), ("c", 21), ("b", 22))
    put(source, 2, ("a", 23))
    assert (run(exported)["rows"], staged(exported)) == (1, [])
    put(source, 2, ("e", 24), ("f", 25))
    report = run(exported)
    assert (report["rows"], report["duplicates"]) == (1, 1)
    assert offsets(exported) == [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2), (2, 2)]
    assert by_polars(exported) == exported.places()


@pytest.mark.parametrize("form", FORMATS)
def test_a_run_of_duplicates_alone_goes_past_them(
    form: Format, tmp_path: Path, source: GrowingTier
) -> None:
    put(source, 0, ("a", 1), ("b", 2))
    exported = export(tmp_path, source, form)
    run(exported)
    put(source, 0, ("a", 3), ("b", 4))
    report = run(exported)
    assert (report["rows"], report["duplicates"], report["files"]) == (0, 2, 0)
    assert run(exported)["queues"] == []
    assert (offsets(exported), staged(exported)) == ([(0, 0), (0, 1)], [])


def test_a_compaction_forgets_no_key(tmp_path: Path, source: GrowingTier) -> None:
    exported = export(tmp_path, source)
    for number in range(6):
        put(source, 0, (f"k{number}", number))
        run(exported)
    assert compact(exported.target)["commit"] is not None
    put(source, 1, *((f"k{number}", 10 + number) for number in range(8)))
    assert run(exported)["duplicates"] == 6
    assert offsets(exported) == [*((0, number) for number in range(6)), (1, 6), (1, 7)]


def test_the_order_is_store_time_then_queue_then_offset(
    tmp_path: Path, source: GrowingTier
) -> None:
    put(source, 0, ("d", 5), ("a", 5), ("b", 5), ("b", 4))
    put(source, 1, ("a", 5), ("c", 7))
    put(source, 2, ("c", 6), ("d", 5))
    exported = export(tmp_path, source)
    run(exported)
    assert offsets(exported) == [(0, 0), (0, 1), (0, 3), (2, 0)]


def test_what_is_in_the_target_counts_although_it_was_stored_later(
    tmp_path: Path, source: GrowingTier
) -> None:
    """Messages already in the target count as the first of their keys, even if they were stored
    later than the new ones."""
    put(source, 0, ("a", 50), ("b", 400))
    exported = export(tmp_path, source)
    run(exported)
    put(source, 1, ("a", 1), ("b", 300))
    assert run(exported)["duplicates"] == 1
    assert offsets(exported) == [(0, 0), (0, 1), (1, 1)]


def test_messages_without_a_key_are_all_kept(tmp_path: Path, source: GrowingTier) -> None:
    put(source, 0, (None, 1), (None, 1), ("", 2), ("", 2), ("a", 3), ("a", 3))
    exported = export(tmp_path, source)
    assert run(exported, columns=("queue_id", "queue_offset"))["duplicates"] == 1
    assert offsets(exported) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]


def test_a_duplicate_later_than_the_window_is_kept(tmp_path: Path, source: GrowingTier) -> None:
    """A duplicate stored after the deduplication window is exported. The window begins at the last
    message with the same key, even if that message was omitted."""
    put(source, 0, ("a", 0), ("b", 0), ("a", 60), ("b", 60.001), ("a", 120))
    exported = export(tmp_path, source)
    run(exported)
    put(source, 0, ("a", 180), ("b", 180))
    run(exported)
    once = Export(tmp_path / "once", Format.PARQUET, source)
    run(once)
    assert offsets(exported) == offsets(once) == [(0, 0), (0, 1), (0, 3), (0, 6)]


def test_keys_are_of_their_topic(tmp_path: Path, source: GrowingTier) -> None:
    put(source, 0, ("a", 1), ("a", 2), topic="t")
    put(source, 0, ("a", 1), ("a", 2), topic="ta")
    exported = export(tmp_path, source)
    assert run(exported)["duplicates"] == 2
    assert (offsets(exported, "t"), offsets(exported, "ta")) == ([(0, 0)], [(0, 0)])


def test_without_it_all_messages_are_exported(tmp_path: Path, source: GrowingTier) -> None:
    put(source, 0, ("a", 1), ("a", 2))
    exported = export(tmp_path, source)
    report = exported.run()
    assert (report["rows"], report["duplicates"]) == (2, 0)
    [commit] = (exported.target / "_tieredstore/commits").glob("*.json")
    assert b"taken_from" not in commit.read_bytes()


@pytest.mark.parametrize(("first", "then"), [(None, WINDOW_MS), (WINDOW_MS, None), (1000, 2000)])
def test_another_choice_is_refused(
    first: int | None, then: int | None, tmp_path: Path, source: GrowingTier
) -> None:
    put(source, 0, ("a", 1))
    exported = export(tmp_path, source)
    exported.run(dedup_window_ms=first)
    with pytest.raises(Invalid, match=f"another dedup_window_ms: expected {first}, found {then}"):
        exported.run(dedup_window_ms=then)


def test_what_was_left_out_before_since_drops_nothing(tmp_path: Path, source: GrowingTier) -> None:
    put(source, 0, ("a", 1), ("b", 9), ("c", 2), ("b", 10), ("c", 11))
    exported = export(tmp_path, source)
    since = Selection(since_ms=START_MS + 8000)
    assert run(exported, selection=since)["duplicates"] == 1
    put(source, 0, ("a", 12), ("c", 13))
    assert run(exported, selection=since)["duplicates"] == 1
    assert offsets(exported) == [(0, 1), (0, 4), (0, 5)]


def test_a_queue_that_is_no_longer_chosen_counts(tmp_path: Path, source: GrowingTier) -> None:
    put(source, 0, ("a", 1))
    put(source, 1, ("b", 2))
    exported = export(tmp_path, source)
    run(exported)
    put(source, 1, ("a", 3), ("c", 4))
    report = run(exported, selection=Selection(queue_ids=(1,)), accept=frozenset({Accept.TOPICS}))
    assert (report["rows"], report["duplicates"]) == (1, 1)


def test_a_damaged_message_is_not_the_first_of_its_key(tmp_path: Path, source: GrowingTier) -> None:
    """A message with a damaged body is not treated as the first message of its key."""
    put(source, 0, ("a", 1))
    put(source, 1, ("a", 2), ("a", 3))
    [log] = source.segments("orders", 0, FileSegmentType.COMMIT_LOG)
    flip(log, 120)
    exported = export(tmp_path, source)
    with pytest.raises(Corrupt, match="orders/0/COMMIT_LOG@0 byte"):
        run(exported)
    report = run(exported, on_damage=OnDamage.SKIP)
    assert (report["rows"], report["duplicates"], report["corrupt_messages"]) == (1, 1, 1)
    assert offsets(exported) == [(1, 0)]


def test_a_body_that_does_not_inflate_is_not_the_first_of_its_key(
    tmp_path: Path, source: GrowingTier
) -> None:
    """A message whose body cannot be decompressed is not treated as the first message of its
    key."""
    source.append("orders", 0, 1, uniq_keys=["a"], times_ms=[START_MS], sys_flag=COMPRESSED)
    put(source, 1, ("a", 2), ("a", 3))
    exported = export(tmp_path, source)
    report = run(exported)
    assert (report["rows"], report["duplicates"], report["corrupt_messages"]) == (2, 1, 0)
    assert offsets(exported) == [(0, 0), (1, 0)]
    put(source, 1, ("a", 4))
    assert run(exported)["duplicates"] == 1


def test_a_damaged_message_that_is_whole_again_was_not_exported(
    tmp_path: Path, source: GrowingTier
) -> None:
    put(source, 0, ("b", 0), ("a", 1), ("c", 2))
    [log] = source.segments("orders", 0, FileSegmentType.COMMIT_LOG)
    whole = log.read_bytes()
    log.write_bytes(whole.replace(b"orders/0/1 ", b"orders/0/X "))
    exported = export(tmp_path, source)
    assert run(exported, on_damage=OnDamage.SKIP)["corrupt_messages"] == 1
    log.write_bytes(whole)
    put(source, 1, ("a", 3), ("c", 4))
    assert run(exported)["duplicates"] == 1
    assert offsets(exported) == [(0, 0), (0, 2), (1, 0)]


def test_damage_in_what_the_target_has(tmp_path: Path, source: GrowingTier) -> None:
    """Duplicates of an exported message cannot be recognised if the message was damaged later.
    Depending on its options, the next export fails, or skips and reports the message."""
    put(source, 0, ("a", 1))
    exported = export(tmp_path, source)
    run(exported)
    [log] = source.segments("orders", 0, FileSegmentType.COMMIT_LOG)
    flip(log, 120)
    put(source, 1, ("a", 2))
    with pytest.raises(Corrupt, match="orders/0/COMMIT_LOG@0 byte"):
        run(exported)
    report = run(exported, on_damage=OnDamage.SKIP)
    assert (report["rows"], report["damage"], report["corrupt_messages"]) == (1, 1, 0)
    assert "orders/0/COMMIT_LOG@0 byte" in report["findings"][0]


def test_a_topic_that_was_made_again_begins_anew(tmp_path: Path, source: GrowingTier) -> None:
    put(source, 0, ("a", 1), ("b", 2))
    put(source, 1, ("c", 2))
    exported = export(tmp_path, source)
    run(exported)
    source.make_again("orders")
    put(source, 0, ("a", 3), ("a", 4), ("d", 5))
    report = run(exported, accept=frozenset({Accept.REMADE}))
    assert (report["rows"], report["duplicates"]) == (2, 1)
    put(source, 0, ("a", 6), ("e", 7))
    assert run(exported)["duplicates"] == 1


def test_what_expired_drops_nothing(tmp_path: Path, source: GrowingTier) -> None:
    put(source, 0, ("a", 1))
    source.roll("orders", 0)
    put(source, 0, ("b", 2))
    exported = export(tmp_path, source)
    run(exported)
    source.expire("orders", 0)
    put(source, 0, ("a", 3), ("b", 4))
    assert run(exported)["duplicates"] == 1
    assert offsets(exported) == [(0, 0), (0, 1), (0, 2)]


def test_only_what_was_stored_near_the_new_messages_is_read_again(
    tmp_path: Path, source: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second in range(20):
        put(source, 0, *((f"k{second}-{number}", second * 600) for number in range(20)))
        source.roll("orders", 0)
    exported = export(tmp_path, source)
    run(exported, task_bytes=10_000)
    read: list[int] = []

    def reading(task: KeysTask) -> KeysOutcome:
        read.extend(item.count for item in task.ranges)
        return stage_keys(task)

    put(source, 1, ("k19-7", 19 * 600 + 30), ("new", 19 * 600 + 31))
    monkeypatch.setattr(drops, "stage_keys", reading)
    assert run(exported, task_bytes=10_000)["duplicates"] == 1
    assert 2 + 20 <= sum(read) <= 2 + 40


@pytest.mark.parametrize("records", [1, 3, 1000])
def test_many_tasks_find_the_same(
    records: int, tmp_path: Path, source: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drops, "FIND_RECORDS", records)
    for queue_id in range(3):
        put(source, queue_id, *((f"k{number % 9}", number) for number in range(20)))
    exported = export(tmp_path, source)
    report = run(exported)
    stages = {stage["stage"]: stage["tasks"] for stage in report["stages"]}
    assert stages["duplicates"] == -(-60 // records)
    assert stages["keys"] == stages["write"] > 10
    assert report["duplicates"] == 51
    assert offsets(exported) == [(0, number) for number in range(9)]


def test_a_tier_that_changes_between_the_stages_commits_nothing(
    tmp_path: Path, source: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export commits nothing if the tier changes between its stages."""
    put(source, 0, ("a", 1))
    put(source, 1, ("a", 2))
    [log] = source.segments("orders", 0, FileSegmentType.COMMIT_LOG)
    exported = export(tmp_path, source)

    def damaging(task: WriteTask) -> WriteOutcome:
        flip(log, 120)
        return write(task)

    with monkeypatch.context() as patch:
        patch.setattr(job, "write", damaging)
        with pytest.raises(Unavailable, match="the tier changed while it was exported"):
            run(exported, on_damage=OnDamage.SKIP, journal="a", task_bytes=10_000)
    assert run(exported, on_damage=OnDamage.SKIP, journal="a", task_bytes=10_000)["rows"] == 1
    assert offsets(exported) == [(1, 0)]


def test_what_expires_while_it_is_read_again_is_told(
    tmp_path: Path, source: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(source, 0, ("a", 1))
    source.roll("orders", 0)
    put(source, 0, ("b", 2))
    exported = export(tmp_path, source)
    run(exported)
    put(source, 1, ("a", 3), ("b", 4))

    def expiring(task: KeysTask) -> KeysOutcome:
        if task.ranges[0].queue.queue_id == 0:
            source.expire("orders", 0)
        return stage_keys(task)

    with monkeypatch.context() as patch:
        patch.setattr(drops, "stage_keys", expiring)
        with pytest.raises(Unavailable, match="messages expired while they were exported"):
            run(exported, journal="a")
    assert run(exported, journal="a")["duplicates"] == 1


def test_by_the_public_call(tmp_path: Path, source: GrowingTier) -> None:
    put(source, 0, ("a", 1), ("a", 400), ("a", 2000))
    where: dict[str, Any] = {"to": tmp_path / "lake", "work": tmp_path / "work"}
    with pytest.raises(Invalid, match="dedup_window: is for an export with dedup"):
        jobs.export(source.url, dedup_window="1h", **where)
    with pytest.raises(Invalid, match="dedup_window: expected a time such as 30s"):
        jobs.export(source.url, dedup=True, dedup_window="1y", **where)
    assert jobs.export(source.url, dedup=True, **where)["duplicates"] == 1
    jobs.export(source.url, dedup=True, dedup_window=timedelta(minutes=10), **where)
    with pytest.raises(Invalid, match="another dedup_window_ms"):
        jobs.export(source.url, dedup=True, dedup_window="2h", **where)
    where["to"] = tmp_path / "{topic}"
    report = jobs.export(source.url, dedup=True, dedup_window="2h", workers=2, **where)
    assert (report["rows"], report["duplicates"]) == (1, 2)


def test_a_staged_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    from tieredstore.jobs.exporting.targets.storage import ArrowFolder

    files = ArrowFolder(str(tmp_path)).connect()
    (tmp_path / "x.keys").write_bytes(bytes(8 * (keys.SECTIONS + 1) - 1))
    with pytest.raises(Unavailable, match="staged file is cut off: expected 32776 bytes at 0"):
        keys.read_section(files, "x.keys", 0, keys.SECTIONS)
