"""A broker's local store, state and tier are replaced by older copies in random order. No message
is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.exchanged.world import World


def run(root: Path, seed: int, count: int) -> None:
    world = World(root, seed)
    world.run(count, world.restart)


@pytest.mark.parametrize("seed", range(3))
def test_w33_w79_exchanged_parts_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed, 15)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_300))
def test_w33_w79_exchanged_parts_lose_and_double_nothing_for_long(
    tmp_path: Path, seed: int
) -> None:
    run(tmp_path, seed, 25)
