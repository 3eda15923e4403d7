"""A compaction merges small Parquet files into larger ones without losing rows, even if it is
interrupted."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.compaction import (
    ROUNDS,
    compact,
    data_files,
    export_often,
    missing,
    rows_in_order,
    staged,
)
from tests.kit.jobs.export import Export, places_of
from tests.kit.jobs.kills import Killed, Steps, killed_at
from tieredstore.errors import Corrupt, Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.jobs.exporting import compaction, job
from tieredstore.jobs.exporting.partition import parse_partition_by
from tieredstore.jobs.exporting.request import Format
from tieredstore.jobs.exporting.targets.parquet_log import CommitLog
from tieredstore.jobs.exporting.targets.storage import ArrowFiles
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import CompactExportOptions

STEPS: Steps = (
    (Journal, "record"),
    *((ArrowFiles, name) for name in ("create", "seal", "put", "put_new", "move", "delete")),
    (ArrowFiles, "delete_folder"),
)
COLUMNS = ("topic", "queue_id", "queue_offset", "msg_id", "body", "store_timestamp", "day")


@pytest.fixture
def exported(tmp_path: Path, tier: GrowingTier) -> Export:
    """A target of two partitions, each with one file per export."""
    return export_often(tmp_path / "exported", tier)


def commits(exported: Export) -> list[dict[str, Any]]:
    folder = exported.target / "_tieredstore/commits"
    return [json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))]


def read_by_all(exported: Export) -> list[list[tuple[Any, ...]]]:
    """Return the rows as read by pyarrow, DuckDB and Polars."""
    names = ", ".join(COLUMNS)
    pattern = f"{exported.target}/topic=*/**/*.parquet"
    query = f"SELECT {names} FROM read_parquet('{pattern}', hive_partitioning=true)"
    found = [
        exported.table().select(COLUMNS).to_pylist(),
        [
            dict(zip(COLUMNS, row, strict=True))
            for row in duckdb.connect().execute(query).fetchall()
        ],
        pl.read_parquet(pattern, hive_partitioning=True).select(COLUMNS).to_dicts(),
    ]
    return [sorted(tuple(map(str, row.values())) for row in rows) for rows in found]


def test_readers_find_the_same_rows(exported: Export) -> None:
    assert len(data_files(exported.target)) == 2 * ROUNDS
    before, in_order = read_by_all(exported), rows_in_order(exported.target)
    assert [len(rows) for rows in before] == [len(in_order)] * 3
    report = compact(exported.target)
    assert [path.name for path in data_files(exported.target)] == [
        f"{ROUNDS:08d}-00000_c{ROUNDS + 1:08d}.parquet",
        f"{ROUNDS:08d}-00001_c{ROUNDS + 1:08d}.parquet",
    ]
    assert read_by_all(exported) == before
    assert rows_in_order(exported.target) == in_order
    assert exported.places() == places_of(exported.tier)
    assert staged(exported.target) == []
    assert report["commit"] == f"{ROUNDS + 1:020d}"
    sizes = [path.stat().st_size for path in data_files(exported.target)]
    assert (report["rows"], report["merged_files"], report["kept_files"]) == (
        len(in_order), 2 * ROUNDS, 0
    )  # fmt: skip
    assert (report["files"], report["file_bytes"]) == (2, sum(sizes))


@pytest.mark.parametrize("choice", ["none", "topic,hour,bucket(2)"])
def test_partitions_of_any_kind(choice: str, tmp_path: Path, tier: GrowingTier) -> None:
    by = parse_partition_by(choice)
    exported = export_often(tmp_path / "exported", tier, partition_by=by)
    in_order = rows_in_order(exported.target)
    folders = {path.parent for path in data_files(exported.target)}
    assert compact(exported.target)["files"] == len(data_files(exported.target)) == len(folders)
    assert rows_in_order(exported.target) == in_order
    tier.append("orders", 0, 2)
    assert exported.run(partition_by=by)["rows"] == 2


def test_nothing_to_do_is_no_commit(exported: Export) -> None:
    before = commits(exported)
    for min_files in (ROUNDS + 1, 100):
        report = compact(exported.target, min_files=min_files)
        assert (report["commit"], report["files"], report["kept_files"]) == (None, 0, 2 * ROUNDS)
    assert commits(exported) == before
    assert compact(exported.target)["commit"] is not None
    assert compact(exported.target)["commit"] is None
    assert len(commits(exported)) == len(before) + 1


def test_exports_and_compactions_take_turns(exported: Export, tier: GrowingTier) -> None:
    for count in (3, 4):
        assert compact(exported.target)["files"] > 0
        tier.append("orders", 0, count)
        report = exported.run()
        assert report["rows"] == count
        assert report["commit"] == f"{len(commits(exported)):020d}"
        assert exported.run()["commit"] is None
    assert exported.places() == places_of(tier)
    last = commits(exported)[-1]["state"]
    assert last["sequence"] == ROUNDS + 2


def test_the_log_says_which_files_there_are(exported: Export, tier: GrowingTier) -> None:
    compact(exported.target)
    tier.append("orders", 0, 4)
    exported.run()
    compact(exported.target)
    alive: set[str] = set()
    for commit in commits(exported):
        removed = set(commit.get("removed", ()))
        assert removed <= alive
        alive = (alive - removed) | {name for _, name in commit["files"]}
    found = {str(path.relative_to(exported.target)) for path in data_files(exported.target)}
    assert alive == found


def test_earlier_versions_refuse_a_log_whose_commits_they_would_number_otherwise(
    exported: Export, tier: GrowingTier
) -> None:
    compact(exported.target)
    tier.append("orders", 0, 4)
    exported.run()
    assert [commit["state"]["version"] for commit in commits(exported)] == [1] * ROUNDS + [3, 3]
    assert all(
        commit.keys() == {"state", "staging", "files"} for commit in commits(exported)[:ROUNDS]
    )
    states = [{**commit["state"], "version": 1} for commit in commits(exported)]
    assert states[ROUNDS] == states[ROUNDS - 1]


def test_neighbours_are_merged_up_to_the_size_that_is_wanted() -> None:
    request = CompactExportOptions("to", target_file_bytes=10 << 20)
    sizes = {
        "a/00000001-00000.parquet": 6 << 20,
        "a/00000001-00001.parquet": 6 << 20,
        "a/00000002-00000.parquet": 3 << 20,
        "a/00000003-00000.parquet": 10 << 20,
        "a/00000004-00000.parquet": 1,
        "b/00000001-00002.parquet": 1,
        "b/00000002-00001_c00000007.parquet": 1,
        "b/00000009-00000.parquet": 1,
    }
    groups = [[name for name, _ in group] for group in
              compaction.group_small_files(sizes, request)]  # fmt: skip
    names = list(sizes)
    assert groups == [names[1:3], names[5:]]
    three = replace(request, min_files=3)
    assert [len(group) for group in compaction.group_small_files(sizes, three)] == [3]


@pytest.mark.parametrize("name", ["00000001-00000.parquet", "00000001-00000_c00000004.parquet"])
def test_a_merged_file_stands_behind_its_parts_and_in_front_of_the_next(name: str) -> None:
    merged = compaction._merged_name(f"a/{name}", 12)
    assert f"a/{name}" < merged < "a/00000001-00001.parquet"


def test_files_of_others_are_left_alone(exported: Export) -> None:
    [first, *_] = data_files(exported.target)
    others = [first.with_name(name) for name in ("mine.parquet", "2024-11.parquet")]
    for other in others:
        shutil.copy(first, other)
    content = first.read_bytes()
    assert compact(exported.target)["merged_files"] == 2 * ROUNDS
    assert [other.read_bytes() for other in others] == [content, content]


@pytest.mark.parametrize("with_journal", [True, False])
def test_a_kill_at_any_step_loses_nothing_and_doubles_nothing(
    with_journal: bool, tmp_path: Path, exported: Export
) -> None:
    expected = places_of(exported.tier)
    in_order = rows_in_order(exported.target)
    for number in range(1000):
        copy = Export(tmp_path / str(number), Format.PARQUET, exported.tier)
        shutil.copytree(exported.target, copy.target)
        journal = tmp_path / f"{number}.jsonl"
        with killed_at(number, STEPS) as calls:
            try:
                compact(copy.target, journal=journal)
                break
            except Killed:
                pass
        assert not missing(expected, copy.places()), f"killed at {number}, {calls[-1]}"
        compact(copy.target, journal=journal if with_journal else None)
        assert rows_in_order(copy.target) == in_order, f"killed at {number}, {calls[-1]}"
        assert staged(copy.target) == []
        assert len(data_files(copy.target)) == 2
        assert compact(copy.target)["commit"] is None
    assert number >= 2 * len(calls) > 30, calls


def test_the_next_export_ends_a_compaction_that_was_killed(
    tmp_path: Path, exported: Export, tier: GrowingTier
) -> None:
    tier.append("orders", 1, 5)
    expected = places_of(tier)
    for number in range(1000):
        copy = Export(tmp_path / str(number), Format.PARQUET, tier)
        shutil.copytree(exported.target, copy.target)
        with killed_at(number, STEPS) as calls:
            try:
                compact(copy.target)
                break
            except Killed:
                pass
        assert copy.run(task_bytes=1 << 20)["rows"] == 5
        assert copy.places() == expected, f"killed at {number}, {calls[-1]}"
        compact(copy.target)
        assert copy.places() == expected, f"killed at {number}, {calls[-1]}"
        assert staged(copy.target) == []
    assert number >= 2 * len(calls)


def test_an_export_that_was_killed_goes_on_behind_a_compaction(
    tmp_path: Path, exported: Export, tier: GrowingTier
) -> None:
    tier.append("orders", 1, 5)
    expected = places_of(tier)
    for number in range(1000):
        copy = Export(tmp_path / str(number), Format.PARQUET, tier)
        shutil.copytree(exported.target, copy.target)
        with killed_at(number, STEPS) as calls:
            try:
                copy.run(journal="a")
                break
            except Killed:
                pass
        assert compact(copy.target)["commit"] is not None
        copy.run(journal="a")
        assert copy.places() == expected, f"killed at {number}, {calls[-1]}"
        assert copy.run(journal="a")["rows"] == 0
        assert staged(copy.target) == []
    assert number >= 2 * len(calls)


def once(place: Any, name: str, action: Callable[[], object]) -> pytest.MonkeyPatch:
    """Patch a function so that an action runs before its first call."""
    patch, function = pytest.MonkeyPatch(), getattr(place, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        patch.undo()
        action()
        return function(*args, **kwargs)

    patch.setattr(place, name, call)
    return patch


def test_a_compaction_goes_on_behind_exports(exported: Export, tier: GrowingTier) -> None:
    def export() -> None:
        for _ in range(2):
            tier.append("orders", 0, 3)
            assert exported.run()["rows"] == 3

    once(compaction, "_commit_once", export)
    report = compact(exported.target)
    assert report["merged_files"] == 2 * ROUNDS
    assert len(data_files(exported.target)) == 4
    assert exported.places() == places_of(tier)
    once(CommitLog, "add", export)
    assert compact(exported.target)["merged_files"] == 3
    assert exported.places() == places_of(tier)


@pytest.mark.parametrize(("place", "name"), [(job.PinnedExport, "commit"), (CommitLog, "add")])
def test_an_export_goes_on_behind_a_compaction(
    place: Any, name: str, exported: Export, tier: GrowingTier
) -> None:
    tier.append("orders", 0, 3)
    once(place, name, lambda: compact(exported.target))
    report = exported.run()
    assert (report["rows"], report["sequence"]) == (3, ROUNDS + 1)
    assert report["commit"] == f"{ROUNDS + 2:020d}"
    assert exported.places() == places_of(tier)
    assert exported.run()["rows"] == 0
    assert staged(exported.target) == []


@pytest.mark.parametrize(
    ("place", "name"), [(compaction, "merge"), (compaction, "_commit_once"),
                        (CommitLog, "add")]
)  # fmt: skip
def test_of_two_compactions_at_once_one_wins(
    place: Any, name: str, exported: Export, tmp_path: Path
) -> None:
    in_order = rows_in_order(exported.target)
    journal = tmp_path / "journal.jsonl"
    once(place, name, lambda: compact(exported.target))
    with pytest.raises(Fenced, match=f"expected commit 0 to be the last one, found {ROUNDS + 1}"):
        compact(exported.target, journal=journal)
    assert rows_in_order(exported.target) == in_order
    assert staged(exported.target) == []
    assert compact(exported.target, journal=journal)["commit"] is None


def test_a_plan_does_not_take_a_part_of_an_export(
    exported: Export, tier: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction does not merge a file if its listing contains only a part of an export."""
    sizes = ArrowFiles.sizes

    def list_late(files: ArrowFiles) -> dict[str, int]:
        monkeypatch.setattr(ArrowFiles, "sizes", sizes)
        tier.append("orders", 0, 3)
        tier.append("other", 0, 3)
        assert exported.run(task_bytes=1 << 20)["files"] == 2
        found = sizes(files)
        del found[max(found)]
        return found

    monkeypatch.setattr(ArrowFiles, "sizes", list_late)
    assert compact(exported.target)["merged_files"] == 2 * ROUNDS + 2
    assert exported.places() == places_of(tier)


def test_files_that_someone_removed_end_the_plan(exported: Export, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    [first, *_] = data_files(exported.target)
    once(compaction, "merge", first.unlink)
    with pytest.raises(Unavailable, match=f"{first.name} was removed. Nothing"):
        compact(exported.target, journal=journal)
    rows = rows_in_order(exported.target)
    assert compact(exported.target, journal=journal)["merged_files"] == 2 * ROUNDS - 1
    assert rows_in_order(exported.target) == rows


def test_many_exporters_and_compactors_at_once(exported: Export, tier: GrowingTier) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []
    done = {"export": 0, "compact": 0}

    def again(name: str, action: Callable[[], object]) -> None:
        while not stop.is_set():
            try:
                action()
                done[name] += 1
            except Fenced:
                pass
            except BaseException as error:
                errors.append(error)
                return

    threads = [
        threading.Thread(target=again, args=(name, action))
        for name, action in (
            ("export", lambda: exported.run(journal="a", task_bytes=1 << 20)),
            ("export", lambda: exported.run(journal="b", task_bytes=1 << 20)),
            ("compact", lambda: compact(exported.target)),
            ("compact", lambda: compact(exported.target)),
        )
    ]
    for thread in threads:
        thread.start()
    for number in itertools.count():
        if errors or (number > 12 and min(done.values()) > 4):
            break
        tier.append("orders", number % 2, 2)
        stop.wait(random.Random(number).random() / 4)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    exported.run()
    compact(exported.target)
    assert exported.places() == places_of(tier)
    assert staged(exported.target) == []


def test_a_damaged_file_is_named(exported: Export) -> None:
    [first, *_] = data_files(exported.target)
    first.write_bytes(first.read_bytes()[:-20])
    with pytest.raises(Corrupt, match=f"{first.name}: not a Parquet file that can be read"):
        compact(exported.target)


def test_a_file_of_other_columns_is_named(exported: Export, tmp_path: Path) -> None:
    other = Export(tmp_path / "other", Format.PARQUET, exported.tier)
    other.run(columns=("queue_offset",))
    second = data_files(exported.target)[1]
    shutil.copy(data_files(other.target)[0], second)
    with pytest.raises(Corrupt, match=f"{second.name}: a file of other columns: expected"):
        compact(exported.target)


@pytest.mark.parametrize(
    ("form", "said"),
    [(Format.DELTA, "a Delta table: OPTIMIZE"), (Format.ICEBERG, "rewrite_data_files")],
)
def test_tables_have_their_own_means(
    form: Format, said: str, tmp_path: Path, tier: GrowingTier
) -> None:
    exported = Export(tmp_path / "exported", form, tier)
    exported.run()
    place = exported.target
    if form is Format.ICEBERG:
        [place] = {path.parent.parent for path in exported.root.rglob("*.metadata.json")}
    with pytest.raises(Invalid, match=said):
        compact(place)


def test_wrong_requests(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="expected a plain Parquet target of an export"):
        compact(tmp_path)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"min_files": 1}, "min_files: expected at least 2, found 1"),
        ({"target_file_bytes": 5}, "target_file_bytes: expected 1048576 to"),
        ({"zstd_level": 0}, "zstd_level: expected 1 to 22, found 0"),
    ]
    for changes, message in wrong:
        with pytest.raises(TieredStoreError, match=message):
            compact(tmp_path, **changes)
