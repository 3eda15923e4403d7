"""Several exporters run concurrently in separate processes. One of them is killed repeatedly."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.export import FORMATS, Export, places_of
from tieredstore.jobs.exporting.request import Format

EXPORTERS = 3
ROUNDS = 2
FENCED = 5


def command(exported: Export, work: str) -> list[str]:
    place = ["--to", str(exported.target)]
    if exported.form is Format.ICEBERG:
        place = ["--catalog", "test", "--table", "lake.messages"]
        for name, value in exported.catalog.items():
            place += ["--target-option", f"{name}={value}"]
    return [
        sys.executable, "-m", "tieredstore.cli.main", "export", "--tier", exported.tier.url,
        "--topics", "*", "--format", exported.form.value, *place, "--quiet", "--workers", "1",
        "--work", str(exported.root / work),
    ]  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_is_lost_or_doubled(form: Format, tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path / "source")
    exported = Export(tmp_path / "exported", form, tier)
    for number in range(ROUNDS):
        for topic in range(3):
            tier.append(f"t{topic}", 0, 50)
        tier.metadata.flush()
        running = [
            subprocess.Popen(
                command(exported, f"work-{index}"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(EXPORTERS)
        ]
        time.sleep(0.8 + 0.6 * number)
        running[0].kill()
        errors = [process.communicate()[1] for process in running]
        codes = [process.returncode for process in running]
        assert codes[0] in {0, FENCED, -signal.SIGKILL}, errors[0]
        for code, error in zip(codes[1:], errors[1:], strict=True):
            assert code in {0, FENCED}, error
    for index in range(EXPORTERS):
        done = subprocess.run(
            command(exported, f"work-{index}"), capture_output=True, text=True, check=False
        )
        assert done.returncode in {0, FENCED}, done.stderr
    assert exported.places() == places_of(tier)
