"""Group objects are enabled and disabled between runs, on a real server. The tier stays
consistent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.local_stores import plain, put_all, running, small_config
from tests.kit.object_store.servers import ObjectStore
from tieredstore.clock import SYSTEM_CLOCK

ON = {"group_bytes": "16777216"}
OFF = {"group_bytes": "0"}
NAMES = ("--broker", "b", "--cluster", "c")
COUNT = 20
"""Number of messages per run."""


@pytest.mark.parametrize("runs", [(OFF, ON, OFF, ON), (ON, OFF, ON)], ids=["on", "off"])
def test_runs_with_and_without_groups_follow_each_other(
    versitygw: ObjectStore, tmp_path: Path, runs: tuple[dict[str, str], ...]
) -> None:
    state = ("--state", tmp_path / "state", *NAMES)
    for number, parameters in enumerate(runs):
        with running(small_config(tmp_path / "store"), SYSTEM_CLOCK) as store:
            first = number * COUNT
            put_all(store, [plain("A", number=place) for place in range(first, first + COUNT)])
        before = set(groups(versitygw))
        tier = ("--tier", versitygw.url(**parameters))
        ran = tieredstore("offload", tmp_path / "store", *tier, *state, "--quiet")
        assert ran.code == 0, ran.err
        assert bool(set(groups(versitygw)) - before) == (parameters is ON)
        ran = tieredstore("verify", "--tier", versitygw.url(), *state)
        assert ran.code == 0, ran.err
    where = ("--tier", versitygw.url(), *NAMES)
    ran = tieredstore("cat", *where, "--topic", "A", "--output", "raw")
    assert ran.code == 0, ran.err
    assert ran.out.split() == [f"body-{place}" for place in range(COUNT * len(runs))]


def groups(store: ObjectStore) -> list[str]:
    return [key for key in store.keys("tier") if "/.groups/" in key]
