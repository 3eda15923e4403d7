"""The target has each message exactly once after exports that are killed, repeated, or
concurrent."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.export import FORMATS, Export, places_of
from tests.kit.jobs.kills import Killed, Steps, killed_at
from tieredstore.errors import Fenced, TieredStoreError
from tieredstore.jobs.exporting import job
from tieredstore.jobs.exporting.request import Accept, Format
from tieredstore.jobs.exporting.state import TargetState
from tieredstore.jobs.exporting.targets import delta as to_delta
from tieredstore.jobs.exporting.targets import iceberg as to_iceberg
from tieredstore.jobs.exporting.targets.iceberg import IcebergFiles
from tieredstore.jobs.exporting.targets.parquet import ParquetTarget
from tieredstore.jobs.exporting.targets.storage import ArrowFiles
from tieredstore.jobs.exporting.work import WriteOutcome, WriteTask, write
from tieredstore.jobs.journal import Journal
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.location import TierLocation
from tieredstore.scan.selection import Selection

STEPS: Steps = (
    (Journal, "record"),
    (ArrowFiles, "create"),
    (ArrowFiles, "seal"),
    (ArrowFiles, "put"),
    (ArrowFiles, "put_new"),
    (ArrowFiles, "move"),
    (ArrowFiles, "delete"),
    (ArrowFiles, "delete_folder"),
    (IcebergFiles, "create"),
    (IcebergFiles, "seal"),
    (IcebergFiles, "delete"),
    (to_delta.DeltaTarget, "_try"),
    (to_delta.DeltaTarget, "_create"),
    (to_iceberg.IcebergTarget, "_create"),
    (SqlCatalog, "commit_table"),
)


@pytest.mark.parametrize(
    ("form", "with_journal", "step"),
    [
        (Format.PARQUET, True, 1),
        (Format.PARQUET, False, 1),
        (Format.DELTA, True, 1),
        (Format.DELTA, False, 3),
        (Format.ICEBERG, True, 3),
        (Format.ICEBERG, False, 5),
    ],
)
def test_a_kill_at_any_step_loses_nothing_and_doubles_nothing(
    form: Format, with_journal: bool, step: int, tmp_path: Path, tier: GrowingTier
) -> None:
    expected = places_of(tier)
    for number in range(0, 1000, step):
        exported = Export(tmp_path / str(number), form, tier)
        with killed_at(number, STEPS) as calls:
            try:
                exported.run(journal="a", task_bytes=4000)
                break
            except Killed:
                pass
        exported.run(journal="a" if with_journal else "b", task_bytes=4000)
        assert exported.places() == expected, f"killed at {number}, {calls[-1]}"
        assert exported.run(journal="c")["rows"] == 0
        staging = exported.target / "_tieredstore" / "staging"
        assert not staging.exists() or not list(staging.iterdir())
    assert number >= 2 * len(calls) > 20, calls


@pytest.mark.parametrize(
    ("form", "with_journal", "step"),
    [
        (Format.PARQUET, True, 7),
        (Format.PARQUET, False, 13),
        (Format.DELTA, True, 31),
        (Format.ICEBERG, True, 37),
    ],
)
def test_a_kill_at_many_steps_keeps_the_first_of_each_key(
    form: Format, with_journal: bool, step: int, tmp_path: Path
) -> None:
    """An export that is killed at any step keeps the first message of each key."""
    tier = GrowingTier(tmp_path / "source")
    tier.append("orders", 0, 4, uniq_keys=["a", "b", "c", "a"])
    expected = {("orders", 0, 0), ("orders", 0, 1), ("orders", 0, 2)}
    begun = Export(tmp_path / "begun", form, tier)
    begun.run(dedup_window_ms=60_000)
    assert begun.places() == Counter(expected)
    tier.append("orders", 0, 3, uniq_keys=["d", "c", "e"])
    tier.append("orders", 1, 4, uniq_keys=["e", "f", "a", "g"])
    # Store times follow the offsets: the other queue has the first e.
    expected |= {("orders", 0, 4), ("orders", 1, 0), ("orders", 1, 1), ("orders", 1, 3)}
    first = Selection(queue_ids=(0,), until_offset=4)
    again: dict[str, Any] = {"dedup_window_ms": 60_000, "accept": frozenset({Accept.TOPICS})}
    for number in range(0, 1000, step):
        exported = Export(tmp_path / str(number), form, tier)
        exported.run(dedup_window_ms=60_000, selection=first)
        with killed_at(number, STEPS) as calls:
            try:
                exported.run(journal="a", task_bytes=500, **again)
                break
            except Killed:
                pass
        exported.run(journal="a" if with_journal else "b", task_bytes=500, **again)
        assert exported.places() == Counter(expected), f"killed at {number}, {calls[-1]}"
        assert exported.run(journal="c", **again)["rows"] == 0
    assert number >= 2 * len(calls) > 20, calls


@pytest.mark.parametrize("form", FORMATS)
def test_a_second_export_that_is_killed_is_ended_by_the_next(
    form: Format, tmp_path: Path, tier: GrowingTier
) -> None:
    exported = Export(tmp_path / "exported", form, tier)
    exported.run()
    tier.append("orders", 0, 4)
    before = exported.places()
    number = 0
    while True:
        with killed_at(number, STEPS):
            try:
                exported.run(journal="a")
                break
            except Killed:
                number += 5
        seen = exported.places()
        assert seen == before or not (seen - places_of(tier))
    assert exported.places() == places_of(tier)


@pytest.mark.parametrize("form", FORMATS)
def test_of_two_exports_at_once_one_wins(form: Format, tmp_path: Path, tier: GrowingTier) -> None:
    """Only one of two concurrent exports commits."""
    exported = Export(tmp_path / "exported", form, tier)
    committed = job.PinnedExport.commit

    def late(*args: Any) -> str:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(job.PinnedExport, "commit", committed)
            exported.run(journal="b")
        return committed(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job.PinnedExport, "commit", late)
        with pytest.raises(Fenced, match="commit 0 to be the last, found 1"):
            exported.run(journal="a")
    assert exported.places() == places_of(tier)
    assert exported.run(journal="a")["rows"] == 0
    data = [path for path in exported.root.rglob("*.parquet") if path.is_file()]
    assert len(data) == 2  # those of the loser are gone


def test_a_catalog_that_two_make_at_once_is_opened(
    tmp_path: Path, tier: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that create the tables of a catalog at the same time can both open it."""
    exported = Export(tmp_path / "exported", Format.ICEBERG, tier)
    create = SqlCatalog.create_tables
    attempts: list[SqlCatalog] = []

    def create_late(catalog: SqlCatalog) -> None:
        attempts.append(catalog)
        create(catalog)  # by the other one
        SqlCatalogBaseTable.metadata.create_all(catalog.engine, checkfirst=False)

    monkeypatch.setattr(SqlCatalog, "create_tables", create_late)
    exported.run()
    assert exported.places() == places_of(tier)
    for catalog in attempts:
        catalog.close()


def test_staged_files_that_a_winner_removed_are_told_as_its_commit(
    tmp_path: Path, tier: GrowingTier
) -> None:
    exported = Export(tmp_path / "exported", Format.PARQUET, tier)
    seal = ArrowFiles.seal

    def late(files: ArrowFiles, name: str) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ArrowFiles, "seal", seal)
            exported.run(journal="b")
        seal(files, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArrowFiles, "seal", late)
        with pytest.raises(Fenced, match="commit 0 to be the last, found 1"):
            exported.run(journal="a")
    assert exported.places() == places_of(tier)


@pytest.mark.parametrize("form", FORMATS)
def test_a_race_of_commits_has_one_winner(form: Format, tmp_path: Path, tier: GrowingTier) -> None:
    """Only one of two processes commits if both have checked that they may."""
    exported = Export(tmp_path / "exported", form, tier)
    exported.run()
    tier.append("orders", 0, 3)
    barrier = threading.Barrier(2, timeout=60)
    place = {
        Format.PARQUET: (ArrowFiles, "put_new"),
        Format.DELTA: (DeltaTable, "create_write_transaction"),
        Format.ICEBERG: (to_iceberg.IcebergTarget, "_add"),
    }[form]
    action = getattr(*place)
    waited: set[int] = set()

    def together(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() not in waited:
            waited.add(threading.get_ident())
            barrier.wait()
        return action(*args, **kwargs)

    results: list[object] = []

    def run(journal: str) -> None:
        try:
            results.append(exported.run(journal=journal)["rows"])
        except TieredStoreError as error:
            results.append(type(error))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*place, together)
        threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(results, key=str) == [3, Fenced]
    assert exported.places() == places_of(tier)


@pytest.mark.parametrize("form", FORMATS)
def test_another_writers_commit_is_no_matter(
    form: Format, tmp_path: Path, tier: GrowingTier
) -> None:
    """An export continues if another writer compacts the table or deletes rows."""
    exported = Export(tmp_path / "exported", form, tier)
    exported.run()
    tier.append("orders", 0, 3)
    committed = job.PinnedExport.commit

    def late(*args: Any) -> str:
        if form is Format.DELTA:
            DeltaTable(str(exported.target)).delete("topic = 'other'")
        elif form is Format.ICEBERG:
            from pyiceberg.catalog import load_catalog

            catalog = load_catalog("test", **exported.catalog)
            catalog.load_table("lake.messages").delete("topic = 'other'")
            catalog.close()
        return committed(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job.PinnedExport, "commit", late)
        assert exported.run()["rows"] == 3
    kept = {place for place in places_of(tier) if place[0] != "other" or form is Format.PARQUET}
    assert set(exported.places()) == kept
    assert exported.run()["rows"] == 0


@dataclass
class Twice:
    """Runner that executes each task in two threads at the same time, and may return either
    result."""

    description: str = "twice"

    def run(
        self,
        work: Callable[[Any], Any],
        tasks: Any,
        on_done: Callable[[int, Any], None],
    ) -> None:
        for index, task in enumerate(tasks):
            found: list[Any] = [None, None]

            def attempt(which: int, task: Any = task, found: list[Any] = found) -> None:
                found[which] = work(task)

            threads = [threading.Thread(target=attempt, args=(which,)) for which in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            on_done(index, found[index % 2])


@pytest.mark.parametrize("form", FORMATS)
def test_each_task_done_twice_at_once(form: Format, tmp_path: Path, tier: GrowingTier) -> None:
    exported = Export(tmp_path / "exported", form, tier)
    report = exported.run(runner=Twice())
    assert report["stages"][0]["tasks"] > 3
    assert exported.places() == places_of(tier)


def test_an_attempt_that_fails_leaves_nothing_that_counts(
    tmp_path: Path, tier: GrowingTier
) -> None:
    exported = Export(tmp_path / "exported", Format.PARQUET, tier)
    failed: list[int] = []

    def flaky(task: WriteTask) -> WriteOutcome:
        outcome = write(task)
        if task.number not in failed:
            failed.append(task.number)
            raise Killed
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "write", flaky)
        for _ in range(20):
            try:
                exported.run(journal="a")
                break
            except Killed:
                pass
    assert len(failed) > 3
    assert exported.places() == places_of(tier)


def test_a_commit_that_was_not_published_is_so_before_the_next(
    tmp_path: Path, tier: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export publishes the unpublished commit of a killed export before its own."""
    exported = Export(tmp_path / "exported", Format.PARQUET, tier)
    catalogue = job._catalogue

    def killed(target: ParquetTarget, state: TargetState) -> str:
        raise Killed(f"{target} {state}")

    def in_between(source: TierLocation) -> TierCatalogue:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(job, "_catalogue", catalogue)
            inner.setattr(ParquetTarget, "find_commit", killed)
            with pytest.raises(Killed):
                exported.run(journal="first")
        tier.append("orders", 0, 5)
        return catalogue(source)

    with monkeypatch.context() as patch:
        patch.setattr(job, "_catalogue", in_between)
        exported.run(journal="second")
    exported.run(journal="third")
    assert exported.places() == places_of(tier)
