"""Tests of tasks that are attempted several times, one after another or at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kit.jobs.backfill import (
    contents,
    damage,
    fill,
    found,
    memory_tier,
    messages,
    new_run,
    tier_at,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Fenced, Invalid, Unavailable
from tieredstore.jobs.backfilling import write
from tieredstore.jobs.backfilling.job import run_backfill
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import BackfillOptions
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.location import TierLocation

OPTIONS = BackfillOptions(segment_bytes=3000)


class EachTwice(LocalRunner):
    """Runner that attempts every task twice. `between` is called between the two attempts."""

    def __init__(self, between: Callable[[Any], object] = lambda _: None) -> None:
        super().__init__()
        self._between = between

    def run(
        self,
        work: Callable[[Any], Any],
        tasks: Sequence[Any],
        on_done: Callable[[int, Any], None],
    ) -> None:
        for index, task in enumerate(tasks):
            first = work(task)
            self._between(task)
            second = work(task)
            assert first == second
            on_done(index, second)


@pytest.fixture(params=["files", "chunks"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> TierLocation:
    return tier_at(tmp_path) if request.param == "files" else memory_tier(tmp_path)


def run_twice(runner: LocalRunner, root: Path, tier: TierLocation) -> None:
    run_backfill(
        JobRun("backfill", runner, Journal(None, {})), tier, str(root / "t.parquet"), OPTIONS,
        task_bytes=7000,
    )  # fmt: skip


def stored(root: Path) -> Path:
    import pyarrow.parquet as pq

    pq.write_table(messages(60), root / "t.parquet")
    return root


def test_a_second_attempt_leaves_what_the_first_wrote(tier: TierLocation, tmp_path: Path) -> None:
    run_twice(EachTwice(), stored(tmp_path), tier)
    assert damage(tier) == []
    assert found(tmp_path, tier).num_rows == 60


def test_an_attempt_that_was_overtaken_cuts_nothing_off(tmp_path: Path) -> None:
    """A late attempt of a killed run does not truncate a segment that the next run has written."""

    class NeverCut(PosixCalls):
        def truncate(self, fd: int, length: int) -> None:
            raise AssertionError(f"cut at {length}")

    provider = PosixProvider(tmp_path, "c", fsync=False, calls=NeverCut())
    name = SegmentId("b/t/0", FileSegmentType.COMMIT_LOG, 0)
    parts = [memoryview(bytes([number]) * 100) for number in range(6)]
    late, quick = (write.SegmentWriter(provider.open(name), True, 100) for _ in range(2))
    for part in parts[:2]:
        late.write(part)
    for part in parts:
        quick.write(part)
    quick.finish()
    for part in parts[2:]:
        late.write(part)
    late.finish()
    assert provider.open(name).read(0, 600) == b"".join(parts)
    provider.close()


class BothAtOnce(LocalRunner):
    """Runner in which two writers work on every segment at the same time."""

    def run(self, work: Any, tasks: Sequence[Any], on_done: Any) -> None:
        with ThreadPoolExecutor(2) as pool:
            for index, task in enumerate(tasks):
                first, second = pool.map(work, [task, task])
                assert first == second
                on_done(index, first)


def test_attempts_beside_each_other_in_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "WRITE_BYTES", 500)
    monkeypatch.setattr(write, "BATCH_BYTES", 400)
    stored(tmp_path)
    for number in range(5):
        root = tmp_path / f"{number}"
        tier = memory_tier(root)
        table = str(tmp_path / "t.parquet")
        run = JobRun("backfill", BothAtOnce(), Journal(None, {}))
        run_backfill(run, tier, table, OPTIONS, task_bytes=7000)
        assert damage(tier) == []
        assert found(root, tier).num_rows == 60


def segment_of(task: write.WriteTask) -> SegmentId:
    piece = task.pieces[0]
    return SegmentId(piece.path, FileSegmentType.COMMIT_LOG, piece.physical_offset)


@pytest.mark.parametrize("torn", [b"", b"\0" * 90, b"longer than it shall be" * 1000], ids=len)
def test_what_a_torn_write_left_in_a_file_is_written_again(torn: bytes, tmp_path: Path) -> None:
    """The next attempt overwrites the zeros or old bytes that a torn write left."""
    tier = tier_at(tmp_path)

    def tear(task: object) -> None:
        if isinstance(task, write.WriteTask):
            provider = tier.connect()
            provider.open(segment_of(task)).write(100, [torn])
            provider.close()

    run_twice(EachTwice(tear), stored(tmp_path), tier)
    whole = tmp_path / "whole"
    whole.mkdir()
    fill(whole, str(tmp_path / "t.parquet"), OPTIONS)
    assert contents(tier) == contents(tier_at(whole))


def test_what_an_attempt_put_in_part_is_gone_on_with(tmp_path: Path) -> None:
    tier = memory_tier(tmp_path)
    whole = stored(tmp_path)
    fill(whole / "w", str(tmp_path / "t.parquet"), OPTIONS, tier=tier_at(whole / "w"))
    bytes_of = contents(tier_at(whole / "w"))

    class PartThere(LocalRunner):
        def run(self, work: Any, tasks: Sequence[Any], on_done: Any) -> None:
            provider = tier.connect()
            for task in tasks:
                if isinstance(task, write.WriteTask):
                    part = bytes_of[str(segment_of(task))][:321]
                    provider.open(segment_of(task)).write(0, [part])
            provider.close()
            super().run(work, tasks, on_done)

    run_twice(PartThere(), tmp_path, tier)
    assert contents(tier) == bytes_of


def test_other_bytes_in_an_object_store_are_an_error_with_their_place(tmp_path: Path) -> None:
    tier = memory_tier(tmp_path)

    class Foreign(LocalRunner):
        def run(self, work: Any, tasks: Sequence[Any], on_done: Any) -> None:
            if isinstance(tasks[0], write.WriteTask):
                provider = tier.connect()
                provider.open(segment_of(tasks[0])).write(0, [b"of another program"])
                provider.close()
            super().run(work, tasks, on_done)

    with pytest.raises(Invalid, match=r"orders/0/COMMIT_LOG@0: at 0 are other bytes"):
        run_twice(Foreign(), stored(tmp_path), tier)


def test_a_task_of_a_driver_that_was_replaced_does_not_write_for_its_successor(
    tmp_path: Path,
) -> None:
    """A task of a replaced driver does not write under its successor's epoch."""
    tier = memory_tier(tmp_path)
    stored(tmp_path)

    class Replaced(LocalRunner):
        def run(self, work: Any, tasks: Sequence[Any], on_done: Any) -> None:
            if isinstance(tasks[0], write.WriteTask):
                successor = tier.connect()
                epoch = successor.acquire_writer(tier.config.broker_name, take_over=True)
                assert all(not item.size_bytes for item in successor.list(tier.config.broker_name))
                with pytest.raises(Fenced, match="epoch 1 was taken over: epoch 2 has written"):
                    work(tasks[0])
                assert all(not item.size_bytes for item in successor.list(tier.config.broker_name))
                epoch.release()
                successor.close()
            super().run(work, tasks, on_done)

    with pytest.raises(Fenced, match="epoch 1 was taken over"):
        run_twice(Replaced(), tmp_path, tier)
    fill(tmp_path, str(tmp_path / "t.parquet"), OPTIONS, tier=tier)
    assert found(tmp_path, tier).num_rows == 60
    assert damage(tier) == []


def test_a_segment_that_lost_bytes_is_not_committed(tmp_path: Path) -> None:
    """A segment that has lost bytes is not committed. On a file system without conditional writes,
    a late attempt can cause this."""
    tier = tier_at(tmp_path)

    class Shortened(LocalRunner):
        def run(self, work: Any, tasks: Sequence[Any], on_done: Any) -> None:
            super().run(work, tasks, on_done)
            if isinstance(tasks[0], write.WriteTask):
                provider = tier.connect()
                provider.open(segment_of(tasks[0])).write(100, [])
                provider.close()

    with pytest.raises(Unavailable, match=r"COMMIT_LOG@0: expected \d+ bytes, found 100"):
        run_twice(Shortened(), stored(tmp_path), tier)
    assert found(tmp_path, tier).num_rows == 0


def test_a_table_that_changes_while_the_job_runs_is_an_error(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    tier = tier_at(tmp_path)

    class Changing(LocalRunner):
        def run(self, work: Any, tasks: Sequence[Any], on_done: Any) -> None:
            if isinstance(tasks[0], write.WriteTask):
                pq.write_table(messages(61), tmp_path / "t.parquet")
            super().run(work, tasks, on_done)

    with pytest.raises(Invalid, match=r"t\.parquet: changed while the job ran: expected \d+ bytes"):
        run_twice(Changing(), stored(tmp_path), tier)


class Killed(BaseException):
    pass


class DyingJournal(Journal):
    """Journal that ends the process before or after it records a step."""

    def __init__(self, path: Path, at: int, after: bool) -> None:
        super().__init__(path, {"job": "backfill"})
        self._left = at
        self._after = after

    def record(self, step: str, outcome: object) -> None:
        if self._left == 0 and not self._after:
            raise Killed(step)
        super().record(step, outcome)
        self._left -= 1
        if self._left < 0:
            raise Killed(step)


def test_killed_at_each_step_it_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = tmp_path / "t.parquet"
    pq.write_table(pa.concat_tables([messages(40), messages(30, queue_id=1)]), table)
    whole = tier_at(tmp_path / "whole")
    run_backfill(new_run(), whole, str(table), OPTIONS, task_bytes=7000)
    steps: list[str] = []
    at = 0
    while True:
        root = tmp_path / f"{at}"
        tier = tier_at(root)
        try:
            with DyingJournal(root / "journal", at // 2, bool(at % 2)) as journal:
                run = JobRun("backfill", LocalRunner(), journal)
                run_backfill(run, tier, str(table), OPTIONS, task_bytes=7000)
        except Killed as step:
            steps.append(str(step).partition(":")[0])
        else:
            break
        report = run_backfill(new_run(root / "journal"), tier, str(table), OPTIONS, task_bytes=7000)
        assert report["messages"] == 70
        assert contents(tier) == contents(whole), steps[-1]
        assert damage(tier) == []
        at += 1
    expected = {
        "source",
        "now",
        "measure",
        "pin",
        "announce",
        "write",
        "commit",
        "index",
        "record",
        "segment_bytes",
    }
    assert set(steps) == expected


def test_a_configuration_that_changed_between_two_runs_changes_no_segment(tmp_path: Path) -> None:
    """A rerun of a backfill writes the segments planned by the first run, even if the configuration
    has changed."""
    table = messages(40)

    class Dying(Journal):
        def record(self, name: str, outcome: object) -> None:
            if name.startswith("commit"):
                raise Killed
            super().record(name, outcome)

    with Dying(tmp_path / "journal", {"job": "backfill"}) as journal, pytest.raises(Killed):
        fill(tmp_path, table, name="t", run=JobRun("backfill", LocalRunner(), journal))
    other = tier_at(tmp_path, tieredStoreCommitLogMaxSize="1000")
    run_backfill(new_run(tmp_path / "journal"), other, str(tmp_path / "t.parquet"))
    assert found(tmp_path).num_rows == 40
    assert damage(tier_at(tmp_path)) == []


@pytest.mark.parametrize("step", ["announce", "write", "commit"])
def test_a_broker_that_wrote_in_between_is_an_error_and_loses_nothing(
    tmp_path: Path, step: str
) -> None:
    """A rerun fails without losing messages if another job has written to its queue since the first
    run."""
    fill(tmp_path, messages(10), name="before")
    table, tier = messages(30, first=10), tier_at(tmp_path)

    class Dying(Journal):
        def record(self, name: str, outcome: object) -> None:
            if name.startswith(step):
                raise Killed
            super().record(name, outcome)

    with Dying(tmp_path / "journal", {"job": "backfill"}) as journal, pytest.raises(Killed):
        fill(tmp_path, table, OPTIONS, name="t", run=JobRun("backfill", LocalRunner(), journal))
    end = 40 if step == "commit" else 10
    fill(tmp_path, messages(5, first=end), name="other")
    with pytest.raises(Invalid, match=f"to end at 10, as when this job began, found {end + 5}"):
        run_backfill(new_run(tmp_path / "journal"), tier, str(tmp_path / "t.parquet"), OPTIONS)
    assert found(tmp_path)["queue_offset"].to_pylist() == list(range(end + 5))
    # Segments of a failed attempt name no message and hide none.
    assert {finding.kind for finding in damage(tier)} <= {
        "bytes-unnamed",
        "segment-truncated",
        "metadata-time",
    }
