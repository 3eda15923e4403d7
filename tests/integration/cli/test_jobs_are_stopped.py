"""Signals stop jobs that run as processes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.growing_tier import GrowingTier
from tests.kit.paths import ROOT
from tests.kit.waiting import wait_for

SLOW = """
import fcntl, signal, sys, termios, time
from pathlib import Path

from tieredstore.cli.main import run
from tieredstore.jobs import runner, verifying
from tieredstore.jobs.exporting import job

FOLDER = Path(sys.argv[1])
run_tasks = runner.LocalRunner.run

def run_slowly(self, work, tasks, on_done):
    def wait_first(index, result):
        (FOLDER / "a task is done").touch()
        while not (FOLDER / "go on").exists():
            time.sleep(0.01)
        on_done(index, result)
    run_tasks(self, work, tasks, wait_first)

if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever runs the tests
    if sys.stdin.isatty():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    runner.LocalRunner.run = run_slowly
    for call in (verifying.run_verify, job.run_export):
        call.__kwdefaults__["task_bytes"] = 1  # a task for each queue, and more
    sys.exit(run(sys.argv[2:]))
"""
"""A program that runs the command. The first task of the job ends when the test requests it."""
STOPS = "tieredstore: it stops after the current tasks, a second signal interrupts them\n"


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    made = GrowingTier(tmp_path / "source")
    for queue_id in range(6):
        made.append("orders", queue_id, 4)
    return made


def run_and_signal(
    folder: Path,
    number: signal.Signals,
    *arguments: object,
    times: int = 1,
    reaches_workers: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run the command. Send it signals while its first task is running."""
    script, errors = folder / "slow.py", folder / "errors"
    script.write_text(SLOW)
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(script), str(folder), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        try:
            wait_for(lambda: (folder / "a task is done").exists() or process.poll() is not None)
            for sent in range(times):
                (os.killpg if reaches_workers else os.kill)(process.pid, number)
                if sent < times - 1:
                    wait_for(lambda: STOPS in errors.read_text())
            (folder / "go on").touch()
            out, _ = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
    return subprocess.CompletedProcess(script, process.returncode, out, errors.read_text())


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["INT", "TERM", "HUP"],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_j01_an_export_that_is_stopped_goes_on(
    tmp_path: Path, tier: GrowingTier, number: signal.Signals, code: int, workers: int
) -> None:
    export: list[object] = ["export", "--tier", tier.url, "--format", "parquet"]
    export += ["--to", tmp_path / "exported", "--work", tmp_path / "work", "--output", "json"]
    # `timeout`, a service manager and a terminal send theirs to the workers too.
    done = run_and_signal(tmp_path, number, *export, "--workers", workers, reaches_workers=True)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert STOPS in done.stderr
    assert done.stderr.splitlines()[-1] == "tieredstore: stopped: run it again to continue"
    [journal] = (tmp_path / "work").iterdir()
    drop = f"`tieredstore jobs forget {journal.stem} --work {tmp_path / 'work'} --yes`"
    assert f"journal {journal}, {drop} drops it" in done.stderr.splitlines()[-2]
    assert not list((tmp_path / "exported").rglob("*.parquet")), "nothing is committed"
    again = run_and_signal(tmp_path, signal.SIGCONT, *export, "--workers", 1)
    assert again.returncode == 0, again.stderr
    assert drop in again.stderr
    report = json.loads(again.stdout)
    assert report["rows"] == 24
    assert sum(stage["resumed"] for stage in report["stages"]) >= workers


def test_j01_a_job_whose_terminal_is_closed_stops_in_good_order(
    tmp_path: Path, tier: GrowingTier
) -> None:
    """A job whose terminal is closed stops cleanly. It cannot write to the closed terminal, but
    this must not count as an error."""
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    export: list[object] = ["export", "--tier", tier.url, "--format", "parquet", "--workers", 2]
    export += ["--to", tmp_path / "exported", "--work", tmp_path / "work"]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, script, tmp_path, *map(str, export)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        wait_for((tmp_path / "a task is done").exists)
        os.close(ours)
        (tmp_path / "go on").touch()
        assert process.wait(60) == 129
    finally:
        process.kill()
        process.wait()
    assert [path.suffix for path in (tmp_path / "work").iterdir()] == [".jsonl"]
    assert tieredstore(*export).code == 0


def test_j01_a_verify_that_is_stopped_says_how_the_next_one_would_go_on(
    tmp_path: Path, tier: GrowingTier
) -> None:
    verify = ["verify", "--tier", tier.url, "--workers", "1"]
    done = run_and_signal(tmp_path, signal.SIGTERM, *verify)
    assert (done.returncode, done.stdout) == (143, "")
    assert done.stderr.splitlines()[-1] == (
        "tieredstore: stopped: with --work the next run continues"
    )
    assert tieredstore(*verify).code == 0


def test_a_second_signal_interrupts(tmp_path: Path, tier: GrowingTier) -> None:
    script = ["verify", "--tier", tier.url, "--workers", "1", "--quiet"]
    done = run_and_signal(tmp_path, signal.SIGINT, *script, times=2)
    assert done.returncode == 130
    assert done.stderr.replace("\n\n", "\n") == f"{STOPS}tieredstore: error: interrupted\n"
