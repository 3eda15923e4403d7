"""Tests of the report of `tieredstore health`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import Ran, files_of, one_line, tieredstore
from tests.kit.jobs.operating import leave_stray, make_world, place
from tests.kit.tiered_local import TieredLocal
from tieredstore.local.recovery.store_lock import StoreLock
from tieredstore.scan.location import METADATA_FILE
from tieredstore.tier.state_files import StateLock, is_held


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TieredLocal]:
    world = make_world(tmp_path)
    yield world
    world.close()


def health(world: TieredLocal, *arguments: object) -> Ran:
    return tieredstore("health", *place(world), *arguments, "--output", "json")


def told(world: TieredLocal, *arguments: object) -> dict[str, Any]:
    ran = health(world, *arguments)
    assert {"up": 0, "degraded": 8, "damaged": 1}[ran.record["status"]] == ran.code
    record: dict[str, Any] = ran.record
    return record


@pytest.mark.parametrize("arguments", [(), ("--list",)])
def test_a_good_tier_is_up_and_nothing_is_changed(
    world: TieredLocal, arguments: tuple[str, ...]
) -> None:
    before = files_of(world.root)
    report = told(world, *arguments)
    assert files_of(world.root) == before
    assert (report["status"], report["reasons"], report["undeleted"]) == ("up", [], 0)
    assert (report["topics"], report["queues"], report["is_writing"]) == (2, 3, False)
    stat = tieredstore("stat", *place(world), "--output", "json").record
    assert report["newest_timestamp"] == stat["max_store_timestamp"]
    assert report["age_seconds"] > 3600
    files = [path for topic in ("T", "K", "rmq_sys_INDEX") for path in world.tier_files(topic)]
    assert report["bytes"] == sum(path.stat().st_size for path in files)
    assert str(world.store.flat_files.provider.url) in report["tier"]
    assert re.fullmatch(r"process \d+ on \S+ since \d{4}-\d\d-\d\dT[\d:.]{12}Z", report["writer"])


def test_the_state_of_another_broker_is_refused(world: TieredLocal) -> None:
    """A state directory of another broker is rejected. Otherwise a probe with a wrong name would
    always report a healthy broker."""
    ran = health(world, "--broker", "broker-z")
    assert ran.code == 2
    assert "is that of broker 'broker-a', not of 'broker-z'" in one_line(ran)


def test_a_newest_message_that_is_too_old_is_told(world: TieredLocal) -> None:
    report = told(world, "--max-age", "2h")
    assert report["status"] == "degraded"
    [reason] = report["reasons"]
    assert reason.startswith("the newest message is wanted within 7,200 s: it is ")
    assert told(world, "--max-age", "5000w")["status"] == "up"
    for bad in "soon", "2020-01-01", "7":
        ran = health(world, "--max-age", bad)
        assert (ran.code, "--max-age" in one_line(ran)) == (2, True)


@pytest.mark.parametrize("holder", [StateLock, StoreLock])
def test_a_writer_that_is_needed(world: TieredLocal, holder: Any) -> None:
    report = told(world, "--needs-writer")
    assert (report["status"], len(report["reasons"])) == ("degraded", 1)
    lock = holder(world.root / "store")
    lock.acquire()
    try:
        report = told(world, "--needs-writer")
    finally:
        lock.release()
    assert (report["status"], report["is_writing"]) == ("up", True)
    assert not is_held(world.root / "store")


def test_a_lock_of_another_process_is_seen_and_not_disturbed(tmp_path: Path) -> None:
    assert is_held(tmp_path / "nothing") is False
    program = (
        "import sys; from pathlib import Path; from tieredstore.tier.state_files import StateLock; "
        f"lock = StateLock(Path({str(tmp_path)!r})); lock.acquire(); print('held', flush=True); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert is_held(tmp_path)
        assert other.stdin is not None
        other.stdin.close()
        assert other.wait(60) == 0
    assert is_held(tmp_path) is False
    assert (tmp_path / "tieredstore.lock").exists()


def test_what_the_tier_lacks_is_damage_where_it_is_listed(world: TieredLocal) -> None:
    world.tier_files("T/0/COMMIT_LOG")[0].unlink()
    assert told(world)["status"] == "up"
    report = told(world, "--list")
    assert report["status"] == "damaged"
    [reason] = report["reasons"]
    assert "segment" in reason


def test_what_the_metadata_does_not_know_is_damage(world: TieredLocal) -> None:
    leave_stray(world)
    report = told(world, "--list", "--max-age", "1h")
    assert report["status"] == "damaged"  # the worst of all findings
    assert len(report["reasons"]) == 2


def test_metadata_that_cannot_be_read_is_damage(world: TieredLocal) -> None:
    folder = (world.root / "store" / METADATA_FILE).parent
    for path in folder.glob("tieredStoreMetadata*"):
        path.write_bytes(b"{ torn")
    ran = health(world)
    assert ran.code == 1
    assert "tieredStoreMetadata" in one_line(ran)


def test_a_tier_that_is_not_there_is_told(world: TieredLocal) -> None:
    (world.root / "tier").rename(world.root / "elsewhere")
    ran = health(world)
    assert ran.code == 2
    assert "no tier here" in ran.err or "no such" in ran.err
