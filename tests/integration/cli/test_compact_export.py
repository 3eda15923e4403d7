"""`tieredstore compact export` runs in processes beside exporters. Some of the processes are
killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

from tests.kit.command_line import tieredstore
from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.compaction import ROUNDS, compact, data_files, export_often, staged
from tests.kit.jobs.export import Export, places_of
from tieredstore.jobs.exporting.request import Format

FENCED = 5


def test_the_report_and_what_is_refused(tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path / "source")
    tier.append("orders", 0, 12)
    tier.append("other", 0, 7)
    exported = export_often(tmp_path / "exported", tier)
    arguments = ("compact", "export", exported.target, "--quiet", "--work", tmp_path / "work",
                 "--workers", "1")  # fmt: skip
    small = tieredstore(*arguments, "--min-files", "9", "--output", "json")
    assert (small.code, json.loads(small.out)["commit"]) == (0, None)
    done = tieredstore(*arguments, "--output", "json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert (report["merged_files"], report["files"]) == (2 * ROUNDS, 2)
    assert exported.places() == places_of(tier)
    wrong = tieredstore("compact", "export", tmp_path / "source", "--quiet", "--work", tmp_path)
    assert wrong.code == 2
    assert "expected a plain Parquet target of an export" in wrong.err


def command(name: str, exported: Export, work: str) -> list[str]:
    place = str(exported.target)
    given = ["compact", "export", place] if name == "compact" else [
        "export", "--tier", exported.tier.url, "--format", "parquet", "--to", place
    ]  # fmt: skip
    return [
        sys.executable, "-m", "tieredstore.cli.main", *given, "--quiet", "--workers", "1",
        "--work", str(exported.root / work),
    ]  # fmt: skip


def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """Two exporters and two compactors run concurrently. Two of them are killed repeatedly. No row
    is lost or duplicated."""
    chance = random.Random(5)
    tier = GrowingTier(tmp_path / "source")
    tier.append("t0", 0, 50)
    exported = export_often(tmp_path / "exported", tier)
    names = ["export", "compact", "export", "compact"]
    for _ in range(3):
        tier.append("t0", 0, 20)
        tier.append("t1", 0, 20)
        tier.metadata.flush()
        running = [
            subprocess.Popen(
                command(name, exported, f"work-{index}"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index, name in enumerate(names)
        ]
        for process in running[:2]:
            try:
                process.wait(chance.uniform(0.8, 1.6))
            except subprocess.TimeoutExpired:
                process.kill()
        for process in running:
            error = process.communicate()[1]
            assert process.returncode in {0, FENCED, -signal.SIGKILL}, error
    for index, name in enumerate(names):
        done = subprocess.run(
            command(name, exported, f"work-{index}"), capture_output=True, text=True, check=False
        )
        assert done.returncode in {0, FENCED}, done.stderr
    compact(exported.target)
    assert exported.places() == places_of(tier)
    assert len(data_files(exported.target)) == 4
    assert exported.form is Format.PARQUET
    assert not staged(exported.target) or compact(exported.target)["commit"] is None
