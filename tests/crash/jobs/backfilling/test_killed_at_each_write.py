"""A backfill is killed at any write and run again. The result equals that of an uninterrupted
backfill. Between the two runs, a broker can open the tier."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.jobs.backfill import messages
from tests.kit.killable.writes import KILLED, KillableRuns, kill_points, load_writes
from tests.kit.tier.contents import tier_contents
from tieredstore.config import config_from_properties
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.reading import run as read

CASES_OF_THE_DAILY_LANE = 6
LATER = [9, pytest.param(3, marks=pytest.mark.slow)]
"""Each run is killed this number of writes later than the run before it."""
MESSAGES = 45

Whole = tuple[dict[str, object], list[str]]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableRuns]:
    table = tmp_path_factory.mktemp("table") / "t.parquet"
    both = pa.concat_tables([messages(30, first=4), messages(MESSAGES - 30, queue_id=1)])
    pq.write_table(both, table, row_group_size=9)
    with closing(KillableRuns("tests.kit.killable.backfill", table=table)) as runner:
        yield runner


@pytest.fixture(scope="module")
def whole(runner: KillableRuns, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    root = tmp_path_factory.mktemp("whole") / "run"
    assert runner.run(root) == 0
    return tier_contents(root), load_writes(root)


def check_what_a_broker_finds(root: Path) -> None:
    """Check that each queue has all of its messages up to some offset."""
    if not (root / "state/config/tieredStoreMetadata.json").exists():
        return
    properties = {
        "brokerName": "broker-a",
        "brokerClusterName": "cluster-a",
        "storePathRootDir": str(root / "state"),
        "tieredStoreFilePath": str(root / "tier"),
    }
    config = config_from_properties(properties, origin="test").config
    provider = PosixProvider(root / "tier", "cluster-a", fsync=False)
    metadata = DefaultMetadataStore(
        root / "state/config/tieredStoreMetadata.json", "broker-a", read_only=True
    )
    metadata.load()
    flat_files = FlatFileStore(config, provider, metadata)
    flat_files.load()
    assert flat_files.broken_queues == {}
    for file in flat_files.files():
        assert file.read_only_reason is None
        for offset in range(file.consume_queue_min_offset, file.consume_queue.commit_unit):
            unit = read(file.read_units(offset, 1))[0]
            record = read(file.read_commit_log(int(unit["physical_offset"]), int(unit["size"])))
            assert int.from_bytes(record[20:28], "big") == offset
    flat_files.close()
    provider.close()


def check(runner: KillableRuns, whole: Whole, tmp_path: Path, some: list[tuple[int, bool]]) -> None:
    expected, writes = whole
    for die_at, torn in some:
        root = tmp_path / f"{die_at}-{torn}"
        assert runner.run(root, die_at, torn) == KILLED, (die_at, torn)
        check_what_a_broker_finds(root)
        assert runner.run(root) == 0, (die_at, torn, writes[die_at])
        assert tier_contents(root) == expected, (die_at, torn, writes[die_at])
        shutil.rmtree(root)


def test_the_uninterrupted_run_is_sound(whole: Whole) -> None:
    found, writes = whole
    assert found["findings"] == []
    assert found["messages"] == MESSAGES
    assert {"tier write", "metadata write", "journal write", "step"} <= set(writes)


def test_killed_at_some_writes_the_rerun_ends_equal(
    runner: KillableRuns, whole: Whole, tmp_path: Path
) -> None:
    every = kill_points(whole[1])
    check(runner, whole, tmp_path, every[:: max(len(every) // CASES_OF_THE_DAILY_LANE, 1)])


@pytest.mark.slow
def test_killed_at_every_write_the_rerun_ends_equal(
    runner: KillableRuns, whole: Whole, tmp_path: Path
) -> None:
    check(runner, whole, tmp_path, kill_points(whole[1]))


@pytest.mark.parametrize("later", LATER)
def test_killed_again_and_again_it_still_ends_equal(
    runner: KillableRuns, whole: Whole, tmp_path: Path, later: int
) -> None:
    """A backfill is killed repeatedly, each time a little later, until a run finishes. The result
    equals that of an undisturbed run."""
    root = tmp_path / "run"
    for step in range(0, 4 * len(whole[1]), later):
        if runner.run(root, step, torn=bool(step % 2)) == 0:
            break
    else:
        pytest.fail("no run came through")
    assert tier_contents(root) == whole[0]
