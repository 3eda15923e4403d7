"""Tests of running tasks in local processes: results, errors, and processes that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.paths import ROOT
from tests.kit.waiting import wait_for
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.jobs.runner import LocalRunner


def square(task: int) -> tuple[int, int]:
    return task * task, os.getpid()


def corrupt_at_three(task: tuple[int, Path]) -> int:
    number, folder = task
    if number == 3:
        raise Corrupt("segment x byte 7: expected a, found b", topic="t", queue_id=1, offset=9)
    (folder / str(number)).touch()
    time.sleep(0.05)
    return number


def die(task: int) -> int:
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


@pytest.mark.parametrize("workers", [1, 2])
def test_every_task_is_done_once(workers: int) -> None:
    results: dict[int, int] = {}
    processes: set[int] = set()

    def on_done(index: int, result: tuple[int, int]) -> None:
        assert index not in results
        results[index] = result[0]
        processes.add(result[1])

    runner = LocalRunner(workers)
    runner.run(square, range(20), on_done)
    assert results == {n: n * n for n in range(20)}
    assert (os.getpid() in processes) == (workers == 1)
    assert len(processes) <= workers
    assert runner.description == f"local[{workers}]"


def test_one_task_stays_in_this_process() -> None:
    found: list[int] = []
    LocalRunner(8).run(square, [5], lambda _, result: found.append(result[1]))
    assert found == [os.getpid()]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_error_ends_the_run_and_keeps_its_facts(workers: int, tmp_path: Path) -> None:
    done: list[int] = []
    with pytest.raises(Corrupt, match="byte 7") as raised:
        LocalRunner(workers).run(
            corrupt_at_three,
            [(n, tmp_path) for n in range(100)],
            lambda _, result: done.append(result),
        )
    assert (raised.value.topic, raised.value.queue_id, raised.value.offset) == ("t", 1, 9)
    assert set(done) <= {int(path.name) for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) < 99  # those that had begun


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_on_done_ends_the_run(workers: int) -> None:
    calls: list[int] = []

    def on_done(index: int, result: tuple[int, int]) -> None:
        del result
        calls.append(index)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        LocalRunner(workers).run(square, range(50), on_done)
    assert len(calls) == 1


def test_a_worker_that_is_killed_is_unavailable_and_says_what_to_look_at() -> None:
    with pytest.raises(Unavailable, match="out of memory"):
        LocalRunner(2).run(die, range(4), lambda _index, _result: None)


def die_or_work(task: tuple[str, Path]) -> None:
    name, folder = task
    if name == "work":
        (folder / "works").touch()
        time.sleep(60)
        (folder / "has worked").touch()
    if name == "die":
        wait_for(lambda: (folder / "works").exists())
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_ends_when_a_worker_is_killed_while_another_works(tmp_path: Path) -> None:
    """A run ends when a worker is killed, even if another worker ignores SIGTERM."""
    # The pool looks at workers that it has started since it last had a result.
    tasks = [(name, tmp_path) for name in ("begin", "work", "die")]
    with pytest.raises(Unavailable, match="out of memory"):
        LocalRunner(2).run(die_or_work, tasks, lambda *_: None)
    assert not (tmp_path / "has worked").exists(), "it waited for the task"


LONG_JOB = """
import signal, sys, time, os
from pathlib import Path
from tieredstore.jobs.runner import LocalRunner

def hold(folder):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(60)

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever runs the tests
    signal.signal(signal.SIGINT, signal.default_int_handler)
    LocalRunner(3).run(hold, [sys.argv[1]] * 3, print)
"""


def has_ended(pid: int) -> bool:
    """Return whether a process has ended. Zombies count as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda n: n.name
)
def test_j01_no_worker_outlives_its_job(tmp_path: Path, number: signal.Signals) -> None:
    """No worker process outlives its job."""
    script = tmp_path / "job.py"
    script.write_text(LONG_JOB)
    pids = tmp_path / "pids"
    pids.mkdir()
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        job = subprocess.Popen(
            [sys.executable, str(script), str(pids)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=stderr,
        )
        try:
            wait_for(lambda: len(list(pids.iterdir())) == 3)
            workers = [int(path.name) for path in pids.iterdir()]
            job.send_signal(number)
            assert job.wait(30) != 0
            wait_for(lambda: all(map(has_ended, workers)))
        finally:
            job.kill()
            job.wait()
    if number is not signal.SIGINT:  # which Python itself reports
        assert "Traceback" not in errors.read_text()


def test_no_workers_are_refused() -> None:
    with pytest.raises(Invalid, match="at least 1, found 0"):
        LocalRunner(0)
