"""Tests of the exported rows, and of where the next export starts."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import tieredstore
from tests.kit.growing_tier import START_MS, GrowingTier
from tests.kit.jobs.export import Export, places_of
from tests.kit.tier_builder import TierBuilder, flip, message
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt, Expired, Invalid, Unavailable
from tieredstore.jobs.exporting import job
from tieredstore.jobs.exporting.job import run_export
from tieredstore.jobs.exporting.request import Accept, ExportRequest, Format
from tieredstore.jobs.exporting.work import WriteOutcome, WriteTask, write
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.message.consume_queue import pack_unit
from tieredstore.scan.arrow.schema import DEFAULT_COLUMNS
from tieredstore.scan.findings import OnDamage
from tieredstore.scan.location import locate
from tieredstore.scan.selection import Selection


def sorted_rows(table: pa.Table, columns: tuple[str, ...]) -> list[dict[str, object]]:
    keys = [("topic", "ascending"), ("queue_id", "ascending"), ("queue_offset", "ascending")]
    rows: list[dict[str, object]] = table.select(columns).sort_by(keys).to_pylist()
    return rows


def test_all_columns_of_all_messages_arrive(exported: Export) -> None:
    columns = (*DEFAULT_COLUMNS, "properties")
    report = exported.run(properties=True)
    expected = tieredstore.open(exported.tier.url).scan(columns=columns).to_arrow()
    assert sorted_rows(exported.table(), columns) == sorted_rows(expected, columns)
    assert report["rows"] == expected.num_rows == 24
    assert {entry["queue"]: (entry["from_offset"], entry["until_offset"], entry["rows"])
            for entry in report["queues"]} == {
        "broker-a/orders/0": (0, 12, 12),
        "broker-a/orders/1": (0, 5, 5),
        "broker-a/other/0": (0, 7, 7),
    }  # fmt: skip


def test_a_second_run_exports_only_what_is_new(exported: Export) -> None:
    exported.run()
    nothing = exported.run()
    assert (nothing["rows"], nothing["files"], nothing["commit"]) == (0, 0, None)
    exported.tier.append("orders", 1, 3)
    exported.tier.append("third", 0, 2)
    report = exported.run()
    assert report["rows"] == 5
    assert report["sequence"] == 2
    assert [entry["from_offset"] for entry in report["queues"]] == [5, 0]
    assert exported.places() == places_of(exported.tier)


def test_small_queues_share_files(exported: Export, tmp_path: Path) -> None:
    for queue_id in range(2, 40):
        exported.tier.append("orders", queue_id, 1)
    report = exported.run(task_bytes=1500)
    assert len(report["stages"]) == 2
    assert report["stages"][0]["tasks"] > 3
    assert report["files"] == 2  # a topic each: the tasks' own were merged
    assert exported.places() == places_of(exported.tier)
    files = [path for path in exported.root.rglob("*.parquet") if "_tieredstore" not in path.parts]
    assert len(files) == 2


def test_files_are_of_one_topic_and_day(exported: Export) -> None:
    exported.tier.append("days", 0, 7_000, body_bytes=10)  # a second each, from 22:13:20 on
    exported.tier.append("days", 1, 6_500, body_bytes=10)
    report = exported.run(selection=Selection(topics=("days",)), task_bytes=200_000)
    assert report["files"] == 2
    table = exported.table()
    assert table.num_rows == 13_500
    midnight = START_MS // 86_400_000 * 86_400_000 + 86_400_000
    counts = {
        (path.name, pq.read_metadata(path).num_rows) for path in exported.root.rglob("*.parquet")
    }
    before = (midnight - START_MS) // 1000
    assert {rows for _, rows in counts} == {2 * before, 13_500 - 2 * before}
    if exported.form is not Format.ICEBERG:  # whose day is no column
        assert table["day"].value_counts().to_pylist() == [
            {"values": day, "counts": count}
            for day, count in zip(
                table["day"].unique().to_pylist(),
                [2 * before, 13_500 - 2 * before]
                if str(table["day"][0].as_py()) == "2023-11-14"
                else [13_500 - 2 * before, 2 * before],
                strict=True,
            )
        ]


def test_two_processes_work(tier: GrowingTier, tmp_path: Path) -> None:
    exported = Export(tmp_path / "exported", Format.PARQUET, tier)
    exported.run(runner=LocalRunner(2))
    assert exported.places() == places_of(exported.tier)


def test_selection_and_columns(exported: Export) -> None:
    since = START_MS + 4_000
    exported.columns = ("queue_id", "queue_offset", "body")
    exported.selection = Selection(topics=("orders",), since_ms=since, until_offset=9)
    exported.run()
    table = exported.table()
    assert set(table.column_names) - {"day"} == {
        "topic", "store_timestamp", "queue_id", "queue_offset", "body",
    }  # fmt: skip
    assert sorted(exported.places()) == [
        *(("orders", 0, offset) for offset in range(4, 9)),
        ("orders", 1, 4),
    ]
    # the bounds of the beginning are those of a queue's first export
    exported.selection = Selection(topics=("orders",), from_offset=11)
    exported.run()
    assert sorted(exported.places()) == [
        *(("orders", 0, offset) for offset in range(4, 12)),
        ("orders", 1, 4),
    ]


def test_a_target_of_something_else_is_refused(exported: Export, tmp_path: Path) -> None:
    exported.selection = Selection(topics=("orders",))
    exported.run()
    with pytest.raises(Invalid, match=r"another topics: expected \['orders'\], found \['other'\]"):
        exported.run(selection=Selection(topics=("other",)))
    with pytest.raises(Invalid, match=r"columns: expected"):
        exported.run(properties=True)
    exported.run(selection=Selection(topics=("other",)), accept=frozenset({Accept.TOPICS}))
    assert exported.places() == places_of(exported.tier)
    moved = tmp_path / "moved"
    (exported.tier.root).rename(moved)
    exported.tier.root = moved
    exported.selection = Selection(topics=("other",))
    with pytest.raises(Invalid, match=r"another tier: expected .*source/tier, found .*moved/tier"):
        exported.run()
    assert exported.run(accept=frozenset({Accept.MOVED}))["rows"] == 0


def test_a_folder_with_files_of_others_is_refused(tier: GrowingTier, tmp_path: Path) -> None:
    for form in (Format.PARQUET, Format.DELTA):
        exported = Export(tmp_path / form.value, form, tier)
        exported.target.mkdir()
        (exported.target / "mine.parquet").touch()
        with pytest.raises(Invalid, match="no export wrote"):
            exported.run()


def test_tables_with_data_of_others_are_refused(tier: GrowingTier, tmp_path: Path) -> None:
    from deltalake import write_deltalake
    from pyiceberg.catalog import load_catalog

    rows = pa.table({"topic": ["a"], "n": [1]})
    delta = Export(tmp_path / "delta", Format.DELTA, tier)
    write_deltalake(str(delta.target), rows)
    with pytest.raises(Invalid, match="no export wrote"):
        delta.run()
    iceberg = Export(tmp_path / "iceberg", Format.ICEBERG, tier)
    catalog = load_catalog("test", **iceberg.catalog)
    catalog.create_namespace("lake")
    catalog.create_table("lake.messages", rows.schema).append(rows)
    with pytest.raises(Invalid, match="no export wrote"):
        iceberg.run()
    catalog.close()


def test_expired_messages_are_a_gap(exported: Export) -> None:
    exported.run()
    exported.tier.append("orders", 0, 2)
    exported.tier.roll("orders", 0)
    exported.tier.append("orders", 0, 4)
    exported.tier.expire("orders", 0)
    with pytest.raises(Invalid, match=r"offset 12, the tier begins at 14\. --accept gap"):
        exported.run()
    report = exported.run(accept=frozenset({Accept.GAP}))
    assert report["gaps"] == [{"queue": "broker-a/orders/0", "from_offset": 12, "until_offset": 14}]
    found = sorted(exported.places())
    assert [place[2] for place in found if place[:2] == ("orders", 0)] == [
        *range(12), *range(14, 18),
    ]  # fmt: skip


@pytest.mark.parametrize("count", [5, 12, 20])
def test_a_topic_that_was_made_again_is_named(exported: Export, count: int) -> None:
    exported.run()
    exported.tier.make_again("orders")
    exported.tier.append("orders", 0, count)
    with pytest.raises(Invalid, match="recreated") as caught:
        exported.run()
    if count < 12:
        assert "up to queue offset 12, the tier now ends at 5" in str(caught.value)
    else:
        old = START_MS + 11_000
        assert str(old) in str(caught.value)
        assert str(old + 1) in str(caught.value)
    report = exported.run(accept=frozenset({Accept.REMADE}))
    assert report["rows"] == count
    assert exported.run()["rows"] == 0


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("count", [12, 40])
def test_t76_two_generations_of_a_topic_never_mix(
    exported: Export, monkeypatch: pytest.MonkeyPatch, count: int, *, is_first: bool
) -> None:
    """An export never mixes messages of a topic with those of its recreation."""
    if not is_first:
        exported.run()
        exported.tier.append("orders", 0, 12)
    tier = exported.tier
    done: list[WriteTask] = []

    def late(task: WriteTask) -> WriteOutcome:
        outcome = write(task)
        if not done:
            tier.make_again("orders")
            tier.append("orders", 0, 12 if is_first else 24)
            tier.append("orders", 1, 5)
            tier.append("orders", 0, count)
        done.append(task)
        return outcome

    monkeypatch.setattr(job, "write", late)
    with pytest.raises(Expired, match="recreated"):
        exported.run(journal="a", task_bytes=500)
    monkeypatch.undo()
    with suppress(Invalid):
        exported.run(journal="a", task_bytes=500)
    found = exported.table().to_pylist()
    lives = {row["msg_id"][-12:-10] for row in found if row["topic"] == "orders"}
    assert lives == {"01" if is_first else "00"}


def test_messages_that_expire_while_they_are_exported(
    exported: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported.tier.roll("orders", 0)
    exported.tier.append("orders", 0, 3)

    def late(task: WriteTask) -> WriteOutcome:
        if exported.tier.segments("orders", 0, FileSegmentType.COMMIT_LOG)[0].name.endswith(
            "0" * 20
        ):
            exported.tier.expire("orders", 0)
        return write(task)

    monkeypatch.setattr(job, "write", late)
    with pytest.raises(
        Unavailable, match="planned from queue offset 0, the queue now begins at 12"
    ):
        exported.run(journal="a")
    assert exported.run(journal="a")["rows"] == 15
    assert exported.places() == places_of(exported.tier)


def test_why_workers_ended_is_told_where_the_target_is_gone_too(
    exported: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error reports why worker processes ended, even if the target is missing."""

    def unguarded(task: WriteTask) -> WriteOutcome:
        for path in (exported.target, exported.root / "warehouse"):
            shutil.rmtree(path, ignore_errors=True)
        raise Unavailable("a worker process ended while it worked")

    monkeypatch.setattr(job, "write", unguarded)
    with pytest.raises(Unavailable, match="a worker process ended"):
        exported.run(journal="a")


def test_only_segments_that_the_state_knows(exported: Export) -> None:
    """An export reads only the segments that are in the metadata. A later export reads the
    others."""
    exported.tier.metadata.flush()
    state = shutil.copytree(exported.tier.root / "state", exported.root / "state")
    exported.tier.roll("orders", 1)
    exported.tier.append("orders", 1, 2)
    source = locate(exported.tier.url, state=state)
    run = JobRun("export", LocalRunner(1), Journal(None, {}))
    assert run_export(run, source, exported.request())["rows"] == 24
    assert exported.run()["rows"] == 2
    assert exported.places() == places_of(exported.tier)


def test_damage_ends_the_job_or_is_counted(exported: Export) -> None:
    [log] = exported.tier.segments("orders", 0, FileSegmentType.COMMIT_LOG)
    flip(log, 120)
    with pytest.raises(Corrupt, match=r"orders/0/COMMIT_LOG@0 byte \d+"):
        exported.run()
    report = exported.run(on_damage=OnDamage.SKIP)
    assert (report["rows"], report["corrupt_messages"], report["damage"]) == (23, 1, 1)
    assert "orders/0/COMMIT_LOG@0 byte" in report["findings"][0]
    assert sum(exported.places().values()) == 23
    assert exported.run(on_damage=OnDamage.SKIP)["rows"] == 0


def test_a_run_with_nothing_but_damage_goes_past_it(exported: Export) -> None:
    exported.run()
    exported.tier.roll("other", 0)
    exported.tier.append("other", 0, 1)
    flip(exported.tier.segments("other", 0, FileSegmentType.COMMIT_LOG)[-1], 120)
    report = exported.run(on_damage=OnDamage.SKIP)
    assert (report["rows"], report["files"], report["corrupt_messages"]) == (0, 0, 1)
    assert exported.run()["queues"] == []


def test_names_that_paths_cannot_have(exported: Export) -> None:
    exported.tier.append("%RETRY%group", 0, 3)
    exported.run(selection=Selection(topic_pattern="%RETRY.*"))
    assert sorted(exported.places()) == [("%RETRY%group", 0, offset) for offset in range(3)]


def test_bad_requests() -> None:
    with pytest.raises(Invalid, match=r"iceberg needs a catalog .--catalog NAME. and a table"):
        ExportRequest(Format.ICEBERG, "/tmp/x")
    with pytest.raises(Invalid, match="parquet needs a folder"):
        ExportRequest(Format.PARQUET)
    with pytest.raises(Invalid, match="zstd_level"):
        ExportRequest(Format.PARQUET, "/tmp/x", zstd_level=0)
    with pytest.raises(Invalid, match="target_file_bytes"):
        ExportRequest(Format.PARQUET, "/tmp/x", target_file_bytes=1)
    with pytest.raises(Invalid, match="no tags"):
        ExportRequest(Format.PARQUET, "/tmp/x", selection=Selection(tags=("a",)))
    with pytest.raises(Invalid, match="Did you mean body"):
        _ = ExportRequest(Format.PARQUET, "/tmp/x", columns=("bodi",)).column_names


@pytest.mark.parametrize("on_damage", list(OnDamage))
def test_units_of_a_crash_whose_messages_never_came_are_not_the_end(
    tmp_path: Path, tier: GrowingTier, on_damage: OnDamage, caplog: pytest.LogCaptureFixture
) -> None:
    exported = Export(tmp_path / "exported", Format.PARQUET, tier)
    [units] = tier.segments("orders", 0, FileSegmentType.CONSUME_QUEUE)
    good = units.read_bytes()
    end = tier._queues["orders", 0].log_end
    units.write_bytes(good + pack_unit(end, 300, 0) + pack_unit(end + 300, 300, 0))
    assert exported.run(on_damage=on_damage)["damage"] == 0
    assert "units up to offset 14 name messages that are not there (yet)" in caplog.text
    units.write_bytes(good)  # the engine writes over them
    tier.append("orders", 0, 5)
    exported.run(on_damage=on_damage)
    assert exported.places() == places_of(tier)


def test_a_first_offset_that_the_queue_has_not_reached_stays_one(
    tmp_path: Path, tier: GrowingTier
) -> None:
    exported = Export(tmp_path / "exported", Format.PARQUET, tier, Selection(from_offset=100))
    exported.run()
    tier.append("orders", 0, 5)
    assert exported.run()["rows"] == 0


class Flaky:
    """A remote folder in which the first attempts to complete a file fail."""

    def __init__(self, folder: Any, failures: list[str], *, is_local: bool) -> None:
        self.place = folder.place
        self._folder = folder
        self._failures = failures
        self._is_local = is_local

    def connect(self) -> Any:
        files = self._folder.connect()
        seal = files.seal

        def flaky_seal(name: str) -> None:
            if self._failures:
                raise Unavailable(f"{name}: {self._failures.pop()}")
            seal(name)

        return SimpleNamespace(
            is_local=self._is_local,
            create=files.create,
            seal=flaky_seal,
            open=files.open,
            delete=files.delete,
            close=files.close,
        )


@pytest.mark.parametrize(("count", "is_local"), [(2, False), (3, False), (1, True)])
def test_o01_an_answer_that_the_client_does_not_know_is_tried_again(
    exported: Export, monkeypatch: pytest.MonkeyPatch, count: int, is_local: bool
) -> None:
    """A request is retried up to twice if the client cannot interpret the reply. Requests to a
    local disk are never retried."""
    failures = ["HTTP status 400"] * count
    monkeypatch.setattr("tieredstore.jobs.exporting.targets.storage.time.sleep", lambda _: None)
    monkeypatch.setattr(
        job,
        "write",
        lambda task: write(replace(task, folder=Flaky(task.folder, failures, is_local=is_local))),
    )
    if is_local or count > 2:
        with pytest.raises(Unavailable, match="HTTP status 400"):
            exported.run()
        assert failures == []
        return
    assert exported.run()["rows"] == 24
    assert exported.places() == places_of(exported.tier)


def stepped(root: Path, seconds: list[int], *, torn: bool = False) -> str:
    """Return the URL of a tier with messages stored at the given seconds. With `torn`, zeros
    replace the last message."""
    builder = TierBuilder(
        root, messages_per_segment=100, times=[START_MS + n * 1000 for n in seconds]
    )
    stored = builder.queue("orders", 0, [message("orders", 0, n) for n in range(len(seconds))])
    builder.built.metadata.flush()
    if torn:
        path = builder.built.path(SegmentId("broker-a/orders/0", FileSegmentType.COMMIT_LOG, 0))
        path.write_bytes(path.read_bytes()[: stored[-1].offset] + bytes(len(stored[-1].record)))
    return builder.built.url


def exported_offsets(target: Path) -> list[int]:
    found = ds.dataset(str(target), format="parquet", partitioning="hive").to_table()
    return sorted(found["queue_offset"].to_pylist())


def test_a_torn_tail_neither_empties_nor_lengthens_an_export_by_time(tmp_path: Path) -> None:
    tier = tieredstore.open(stepped(tmp_path, list(range(20)), torn=True))
    since = tier.export(tmp_path / "since", since=START_MS + 3_000)
    assert (since["rows"], since["corrupt_messages"]) == (16, 0)
    assert exported_offsets(tmp_path / "since") == list(range(3, 19))
    assert tier.export(tmp_path / "until", until=START_MS + 3_000)["rows"] == 3
    assert exported_offsets(tmp_path / "until") == [0, 1, 2]
    assert tier.export(tmp_path / "until")["rows"] == 16
    assert exported_offsets(tmp_path / "until") == list(range(19))


def test_an_export_since_a_time_when_the_clock_went_back(tmp_path: Path) -> None:
    seconds = [*range(10), *range(5, 15)]
    tier = tieredstore.open(stepped(tmp_path, seconds))
    report = tier.export(tmp_path / "out", since=START_MS + 8_000)
    wanted = [number for number, second in enumerate(seconds) if second >= 8]
    assert exported_offsets(tmp_path / "out") == wanted
    assert (report["rows"], report["corrupt_messages"]) == (len(wanted), 0)


@pytest.mark.parametrize("queues", [1, 3])
@pytest.mark.parametrize("dedup", [{}, {"dedup": True}])
def test_j61_times_that_microseconds_cannot_say_are_compared_exactly(
    tmp_path: Path, dedup: dict[str, Any], queues: int
) -> None:
    """Times that cannot be represented in microseconds are compared exactly, and are null in the
    rows."""
    far = 2**63 - 1
    tier = GrowingTier(tmp_path)
    times_ms = [-far - 1, START_MS, far, -far, START_MS + 9, START_MS]
    for queue_id in range(queues):
        tier.append("orders", queue_id, 6, times_ms=times_ms)
    opened = tieredstore.open(tier.url)
    for since, wanted in ((START_MS + 1, [2, 4]), (far, [2]), (-far, [1, 2, 3, 4, 5])):
        target = tmp_path / str(since)
        opened.export(target, since=since, partition_by="none", **dedup)
        assert exported_offsets(target) == sorted(wanted * queues)


def test_an_export_that_would_end_within_times_that_go_back_is_refused(tmp_path: Path) -> None:
    seconds = [*range(10), *range(5, 15)]
    tier = tieredstore.open(stepped(tmp_path, seconds))
    for second in range(16):
        target = tmp_path / str(second)
        wanted = [number for number, stored in enumerate(seconds) if stored < second]
        if 5 < second <= 9:
            with pytest.raises(
                Invalid, match=r"store times go back at 2023.*message \d+ is stored before it"
            ):
                tier.export(target, until=START_MS + second * 1000)
        else:
            tier.export(target, until=START_MS + second * 1000)
            assert (exported_offsets(target) if wanted else []) == wanted


def test_the_repr_of_a_request_shows_no_secret() -> None:
    url = "s3://b/x?region=eu&secret_key=hush"
    request = ExportRequest(Format.DELTA, url, target_options={"secret_key": "hush"})
    assert "hush" not in repr(request) + str(request.identity()) + request.target
