"""Each step of a job runs once, no matter when an earlier run was killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from tieredstore.errors import Invalid, Unavailable
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.run import JobProgress, JobRun, gather_groups
from tieredstore.jobs.runner import LocalRunner
from tieredstore.jobs.stopping import Stopped, StopSignal


@dataclass(frozen=True)
class Piece:
    key: str
    size_bytes: int


PIECES = [Piece("a", 10), Piece("b", 0), Piece("c", 30)]


@dataclass
class Done:
    key: str
    size: int


class Killed(BaseException):
    pass


def work(task: Piece) -> Done:
    return Done(task.key, task.size_bytes)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal", {"job": "test"}) as journal:
        yield journal


def test_map_gives_outcomes_in_the_order_of_the_tasks_and_tells_how_far_it_is(
    journal: Journal,
) -> None:
    seen: list[JobProgress] = []
    run = JobRun("test", LocalRunner(), journal, seen.append)
    assert run.map("stage", work, PIECES, Done) == [Done("a", 10), Done("b", 0), Done("c", 30)]
    assert [(one.done, one.done_bytes) for one in seen] == [(0, 0), (1, 10), (2, 10), (3, 40)]
    assert {(one.stage, one.unit, one.total, one.total_bytes) for one in seen} == {
        ("stage", "tasks", 3, 40)
    }
    assert all(one.seconds >= 0 for one in seen)
    report = run.report({"messages": 7})
    assert report["job"] == "test"
    assert report["runner"] == "local[1]"
    assert report["messages"] == 7
    stages = cast("list[dict[str, object]]", report["stages"])
    assert [(one["tasks"], one["resumed"], one["size_bytes"]) for one in stages] == [(3, 0, 40)]


def test_a_run_after_a_kill_does_what_is_left(tmp_path: Path) -> None:
    for done_before in range(4):
        path = tmp_path / str(done_before)
        calls: list[str] = []

        def work_and_die(
            task: Piece, calls: list[str] = calls, done_before: int = done_before
        ) -> Done:
            if len(calls) == done_before:
                raise Killed
            calls.append(task.key)
            return work(task)

        with Journal(path, {"job": "test"}) as journal:
            run = JobRun("test", LocalRunner(), journal)
            if done_before < 3:
                with pytest.raises(Killed):
                    run.map("stage", work_and_die, PIECES, Done)
            else:
                run.map("stage", work_and_die, PIECES, Done)
        seen: list[JobProgress] = []
        with Journal(path, {"job": "test"}) as journal:
            run = JobRun("test", LocalRunner(), journal, seen.append)
            calls_before = list(calls)

            def count(task: Piece, calls: list[str] = calls) -> Done:
                calls.append(task.key)
                return work(task)

            outcomes = run.map("stage", count, PIECES, Done)
        assert outcomes == [work(piece) for piece in PIECES]
        assert calls_before == ["a", "b", "c"][:done_before]
        assert calls == ["a", "b", "c"]
        assert run.stages[0].resumed == done_before
        assert (seen[0].done, seen[-1].done) == (done_before, 3)
        assert seen[-1].done_bytes == seen[-1].total_bytes == 40
        assert {one.resumed_bytes for one in seen} == {seen[0].done_bytes}


@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_that_is_stopped_keeps_what_was_in_hand_and_begins_nothing(
    tmp_path: Path, workers: int
) -> None:
    stop, pieces = StopSignal(), [Piece(str(number), 1) for number in range(40)]
    path = tmp_path / "journal"

    def stop_at_two(progress: JobProgress) -> None:
        if progress.done >= 2:
            stop.set()

    with Journal(path, {"job": "test"}) as journal:
        run = JobRun("test", LocalRunner(workers), journal, stop_at_two, stop)
        with pytest.raises(Stopped):
            run.map("stage", work_in_a_folder, [Place(tmp_path, piece) for piece in pieces], str)
        with pytest.raises(Stopped):
            run.map("later", work, PIECES, Done)
        kept = [piece.key for piece in pieces if f"stage:{piece.key}" in journal]
    begun = {path.name for path in tmp_path.iterdir()} - {"journal"}
    assert set(kept) == begun
    assert 2 <= len(kept) < 20


@dataclass(frozen=True)
class Place:
    folder: Path
    piece: Piece
    size_bytes: int = 1

    @property
    def key(self) -> str:
        return self.piece.key


def work_in_a_folder(task: Place) -> str:
    (task.folder / task.key).touch()
    time.sleep(0.02)
    return task.key


def test_an_error_while_it_is_stopped_is_no_error(journal: Journal) -> None:
    """Errors of workers are not reported while the job is being stopped, because the same signal
    may have ended the worker."""
    stop = StopSignal()

    def die(task: Piece) -> Done:
        if task.key == "b":
            stop.set()
            raise Unavailable("a worker process ended")
        return work(task)

    with pytest.raises(Stopped):
        JobRun("test", LocalRunner(), journal, stop=stop).map("stage", die, PIECES, Done)
    with pytest.raises(Unavailable):
        JobRun("test", LocalRunner(), journal).map("stage", die, PIECES, Done)


def test_stages_do_not_mistake_the_tasks_of_each_other(journal: Journal) -> None:
    run = JobRun("test", LocalRunner(), journal)
    run.map("one", work, PIECES, Done)
    outcomes = run.map("two", lambda task: Done(task.key, -1), PIECES, Done)
    assert [one.size for one in outcomes] == [-1, -1, -1]


def test_tasks_of_one_key_are_a_mistake(journal: Journal) -> None:
    run = JobRun("test", LocalRunner(), journal)
    with pytest.raises(ValueError, match="same key"):
        run.map("stage", work, [PIECES[0], PIECES[0]], Done)


def test_a_stage_without_tasks_is_none(journal: Journal) -> None:
    assert JobRun("test", LocalRunner(4), journal).map("stage", work, [], Done) == []


def test_once_is_once_and_again_if_it_did_not_end(journal: Journal) -> None:
    calls: list[int] = []

    def action() -> Done:
        calls.append(1)
        if len(calls) == 1:
            raise Killed
        return Done("x", len(calls))

    run = JobRun("test", LocalRunner(), journal)
    with pytest.raises(Killed):
        run.do_once("commit", action, Done)
    assert run.do_once("commit", action, Done) == Done("x", 2)
    assert run.do_once("commit", action, Done) == Done("x", 2)
    assert len(calls) == 2
    with pytest.raises(Invalid, match="Another version"):
        run.do_once("commit", action, int)


def test_gathered_keeps_neighbours_together_within_bounds() -> None:
    def sizes(*items: int, most_bytes: int = 10, most_items: int = 3) -> list[tuple[int, ...]]:
        return list(gather_groups(items, lambda item: item, most_bytes, most_items))

    assert sizes() == []
    assert sizes(1, 2, 3, 4) == [(1, 2, 3), (4,)]
    assert sizes(4, 6, 1) == [(4, 6), (1,)]
    assert sizes(11, 1, 11, 11) == [(11,), (1,), (11,), (11,)]
    assert sizes(0, 0, 0, 0, most_items=2) == [(0, 0), (0, 0)]
    assert sizes(10, 0, 1) == [(10, 0), (1,)]
