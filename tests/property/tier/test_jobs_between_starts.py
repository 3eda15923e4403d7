"""An operator repairs, resets and expires a tier at random between starts. Only the data that these
jobs delete is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.exchanged.jobs import JobWorld


def run(root: Path, seed: int, count: int) -> None:
    world = JobWorld(root, seed)
    world.run(count, world.run_job)


@pytest.mark.parametrize("seed", range(2))
def test_w33_w76_jobs_between_starts_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed, 12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_200))
def test_w33_w76_jobs_between_starts_lose_and_double_nothing_for_long(
    tmp_path: Path, seed: int
) -> None:
    run(tmp_path, seed, 30)
