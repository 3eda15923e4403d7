"""An offload is killed at any write and run again. The result equals that of an uninterrupted
offload."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.kit.killable.writes import KILLED, KillableRuns, kill_points, load_writes
from tests.kit.tier.contents import tier_contents

CASES_OF_THE_DAILY_LANE = 15
LATER = [15, pytest.param(5, marks=pytest.mark.slow)]
"""Each run is killed this number of writes later than the run before it."""


@pytest.fixture(scope="module")
def runner(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableRuns]:
    store = tmp_path_factory.mktemp("source") / "store"
    shutil.copytree(golden / "local-plain", store)
    with closing(KillableRuns("tests.kit.killable.offload", store=store)) as runner:
        yield runner


@pytest.fixture(scope="module")
def uninterrupted(
    runner: KillableRuns, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, object], list[str]]:
    root = tmp_path_factory.mktemp("whole") / "run"
    assert runner.run(root) == 0
    return tier_contents(root), load_writes(root)


def test_the_uninterrupted_run_is_sound(
    uninterrupted: tuple[dict[str, object], list[str]],
) -> None:
    whole, writes = uninterrupted
    assert whole["findings"] == []
    assert whole["messages"] == 19
    assert {"tier write", "metadata write", "journal write"} <= set(writes)


def _check(
    runner: KillableRuns,
    uninterrupted: tuple[dict[str, object], list[str]],
    tmp_path: Path,
    cases: list[tuple[int, bool]],
) -> None:
    whole, writes = uninterrupted
    for die_at, torn in cases:
        root = tmp_path / f"{die_at}-{torn}"
        killed = runner.run(root, die_at, torn)
        assert killed == KILLED, (die_at, torn)
        assert runner.run(root) == 0, (die_at, torn, writes[die_at])
        again = tier_contents(root)
        assert again == whole, (die_at, torn, writes[die_at])
        shutil.rmtree(root)


def test_l01_killed_at_some_writes_the_rerun_ends_equal(
    runner: KillableRuns, uninterrupted: tuple[dict[str, object], list[str]], tmp_path: Path
) -> None:
    cases = kill_points(uninterrupted[1])
    step = max(len(cases) // CASES_OF_THE_DAILY_LANE, 1)
    _check(runner, uninterrupted, tmp_path, cases[::step])


@pytest.mark.slow
def test_l01_killed_at_every_write_the_rerun_ends_equal(
    runner: KillableRuns, uninterrupted: tuple[dict[str, object], list[str]], tmp_path: Path
) -> None:
    _check(runner, uninterrupted, tmp_path, kill_points(uninterrupted[1]))


@pytest.mark.parametrize("later", LATER)
def test_w04_killed_again_and_again_it_still_ends_equal(
    runner: KillableRuns,
    uninterrupted: tuple[dict[str, object], list[str]],
    tmp_path: Path,
    later: int,
) -> None:
    """An offload is killed repeatedly, each time a little later, until a run finishes. The result
    equals that of an undisturbed run."""
    whole, writes = uninterrupted
    root = tmp_path / "run"
    for step in range(0, 4 * len(writes), later):
        if runner.run(root, step, torn=bool(step % 2)) == 0:
            break
    else:
        pytest.fail("no run came through")
    assert tier_contents(root) == whole
