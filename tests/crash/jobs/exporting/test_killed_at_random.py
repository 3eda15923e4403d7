"""An export is killed at random moments while the tier grows. No row is lost or duplicated."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.export import FORMATS, Export, places_of
from tieredstore.jobs.exporting.request import Format

QUEUES = (("orders", 0), ("orders", 1), ("orders", 2), ("%RETRY%g", 0), ("Ord-2", 7))
KILLS = 45
"""Number of kills in one run of the test, unless MOST_S ends the run earlier. The nightly run has
about 700."""
MOST_S = 35
"""Maximum duration of one run of the test, in seconds."""
PROCESSES = multiprocessing.get_context("forkserver")
"""Multiprocessing context. Each export gets a process of its own, in which all modules are already
imported."""
PROCESSES.set_forkserver_preload(
    ["tieredstore.cli.verbs.jobs", "tieredstore.jobs.exporting.job", __name__]
)


def run_command(arguments: list[str], errors: Path) -> None:
    """Run the command in a session of its own."""
    from tieredstore.cli.main import run

    os.setsid()
    os.dup2(os.open(errors, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(run(arguments))


class KilledExports:
    """A tier, a target, and runs of the export command in separate processes."""

    def __init__(self, root: Path, form: Format, chance: random.Random) -> None:
        self.export = Export(root, form, GrowingTier(root))
        self.chance = chance
        self.work = root / "work"
        if form is Format.ICEBERG:
            from pyiceberg.catalog import load_catalog

            load_catalog("test", **self.export.catalog).create_namespace("lake")

    def grow(self, most: int) -> None:
        for topic, queue_id in QUEUES:
            self.export.tier.append(
                topic, queue_id, 1 + self.chance.randrange(most), body_bytes=200
            )
            if self.chance.random() < 0.5:
                self.export.tier.roll(topic, queue_id)

    def command(self) -> list[str]:
        export = self.export
        if export.form is Format.ICEBERG:
            target = ["--catalog", "test", "--table", "lake.messages"]
            for name, value in export.catalog.items():
                target += ["--target-option", f"{name}={value}"]
        else:
            target = ["--to", str(export.target)]
        return [
            *("export", "--tier", export.tier.url),
            *("--format", export.form.value, *target, "--target-file-bytes", str(1 << 20)),
            *("--work", str(self.work), "--quiet"),
        ]

    def run(self, seconds: float | None = None) -> bool:
        """Run the command, and kill it after this number of seconds. Return whether the command
        finished before the kill."""
        errors = self.export.root / "errors"
        process = PROCESSES.Process(target=run_command, args=(self.command(), errors))
        process.start()
        process.join(seconds)
        if process.is_alive():
            assert process.pid is not None
            if self.chance.random() < 0.5:
                with suppress(ProcessLookupError):  # it has no session yet
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
            return False
        assert process.exitcode == 0, errors.read_text()
        return True

    def check(self) -> None:
        assert self.export.places() == places_of(self.export.tier)


@pytest.mark.slow  # each run is a process
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("form", FORMATS)
def test_j01_exports_that_are_killed_at_random_have_each_message_once(
    tmp_path: Path, form: Format, seed: int
) -> None:
    chance = random.Random(seed)
    runs = KilledExports(tmp_path, form, chance)
    runs.grow(2)
    assert runs.run()  # its process may wait for imports
    runs.grow(1500)
    began = time.monotonic()
    assert runs.run()
    whole_seconds = time.monotonic() - began
    runs.check()
    runs.grow(800)
    killed = 0
    while killed < KILLS and (not killed or time.monotonic() < began + MOST_S):
        is_late = chance.random() < 0.85
        share = chance.uniform(0.35, 1.0) if is_late else chance.uniform(0, 1.3)
        started = time.monotonic()
        if runs.run(share * whole_seconds):
            whole_seconds = time.monotonic() - started
            runs.check()
            runs.grow(chance.choice([2, 300, 900]))
            continue
        killed += 1
        if chance.random() < 0.1:  # the journal is lost
            shutil.rmtree(runs.work, ignore_errors=True)
    assert runs.run()
    runs.check()
    assert killed
