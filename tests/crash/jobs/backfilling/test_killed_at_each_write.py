"""A backfill that is killed at any write and run again ends like one that was not interrupted, and
leaves a tier between the two runs that a broker can open."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.crash.jobs.offloading.test_killed_at_each_write import contents
from tests.kit.jobs.backfill import messages
from tests.kit.paths import ROOT
from tieredstore.config import config_from_properties
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.reading import run as read

CASES_OF_THE_DAILY_LANE = 12
MESSAGES = 45

Whole = tuple[dict[str, object], list[str]]


class Runner:
    """One process that forks a backfill for each request."""

    def __init__(self, table: Path) -> None:
        self._table = table
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.killable.backfill"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def run(self, root: Path, die_at: int | None = None, torn: bool = False) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"table": str(self._table), "root": str(root), "die_at": die_at, "torn": torn}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    table = tmp_path_factory.mktemp("table") / "t.parquet"
    both = pa.concat_tables([messages(30, first=4), messages(MESSAGES - 30, queue_id=1)])
    pq.write_table(both, table, row_group_size=9)
    made = Runner(table)
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    root = tmp_path_factory.mktemp("whole") / "run"
    assert runner.run(root) == 0
    return contents(root), json.loads((root / "writes.json").read_bytes())


def cases(writes: list[str]) -> list[tuple[int, bool]]:
    """Before each write, and in the middle of those that have one."""
    return [
        (at, torn)
        for at, what in enumerate(writes)
        for torn in ([False, True] if what.endswith("write") else [False])
    ]


def check_what_a_broker_finds(root: Path) -> None:
    """Queues that end somewhere, every message up to there with its offset."""
    if not (root / "state/config/tieredStoreMetadata.json").exists():
        return
    properties = {
        "brokerName": "broker-a",
        "brokerClusterName": "cluster-a",
        "storePathRootDir": str(root / "state"),
        "tieredStoreFilePath": str(root / "tier"),
    }
    config = config_from_properties(properties, source="test").config
    provider = PosixProvider(root / "tier", "cluster-a", fsync=False)
    metadata = DefaultMetadataStore(
        root / "state/config/tieredStoreMetadata.json", "broker-a", read_only=True
    )
    metadata.load()
    flat_files = FlatFileStore(config, provider, metadata)
    flat_files.load()
    assert flat_files.broken == {}
    for file in flat_files.files():
        assert file.read_only_reason is None
        for offset in range(file.consume_queue.min_unit, file.consume_queue.commit_unit):
            unit = read(file.read_units(offset, 1))[0]
            record = read(file.read_commit_log(int(unit["physical_offset"]), int(unit["size"])))
            assert int.from_bytes(record[20:28], "big") == offset
    flat_files.close()
    provider.close()


def check(runner: Runner, whole: Whole, tmp_path: Path, some: list[tuple[int, bool]]) -> None:
    expected, writes = whole
    for die_at, torn in some:
        root = tmp_path / f"{die_at}-{torn}"
        assert runner.run(root, die_at, torn) == 9, (die_at, torn)
        check_what_a_broker_finds(root)
        assert runner.run(root) == 0, (die_at, torn, writes[die_at])
        assert contents(root) == expected, (die_at, torn, writes[die_at])
        shutil.rmtree(root)


def test_the_uninterrupted_run_is_sound(whole: Whole) -> None:
    found, writes = whole
    assert found["findings"] == []
    assert found["messages"] == MESSAGES
    assert {"tier write", "metadata write", "journal write", "step"} <= set(writes)


def test_killed_at_some_writes_the_rerun_ends_equal(
    runner: Runner, whole: Whole, tmp_path: Path
) -> None:
    every = cases(whole[1])
    check(runner, whole, tmp_path, every[:: max(len(every) // CASES_OF_THE_DAILY_LANE, 1)])


@pytest.mark.slow
def test_killed_at_every_write_the_rerun_ends_equal(
    runner: Runner, whole: Whole, tmp_path: Path
) -> None:
    check(runner, whole, tmp_path, cases(whole[1]))


def test_killed_again_and_again_it_still_ends_equal(
    runner: Runner, whole: Whole, tmp_path: Path
) -> None:
    """Each run dies a little later, until one comes through."""
    root = tmp_path / "run"
    for step in range(0, 4 * len(whole[1]), 3):
        if runner.run(root, step, torn=bool(step % 2)) == 0:
            break
    else:
        pytest.fail("no run came through")
    assert contents(root) == whole[0]
