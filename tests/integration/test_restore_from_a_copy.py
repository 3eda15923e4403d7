"""The disk and the tier are lost. A broker is restored from a copy of the tier."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tieredstore
from tests.kit.generations import TOPICS, StillClock, expire_all, keep_topics, make_world
from tests.kit.tiered_local import TieredLocal
from tieredstore import jobs
from tieredstore.contracts.backups import BackupKind
from tieredstore.jobs.restoring.backups import find_backup
from tieredstore.providers.posix.provider import PosixProvider

OLD = [b"old%d" % number for number in range(6)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TieredLocal]:
    """A tier with topics A and K. The six messages of A have expired. K has two messages."""
    world = make_world(tmp_path / "origin")
    keep_topics(world)
    (world.root / "store/config/consumerOffset.json").write_text(
        '{"offsetTable":{"A@g":{0:6},"K@g":{0:1}}}'
    )
    world.put("A", *OLD)
    world.upload()
    expire_all(world)
    world.put("K", b"k0", b"k1")
    world.upload()
    world.store.index.seal_and_upload(force=True)
    assert (world.tier_files("A"), len(world.tier_files("K"))) == ([], 2)
    world.store.backup.run_once(is_last=True)
    yield world
    world.close()


def copy(world: TieredLocal, *, has_state: bool) -> None:
    origin = tieredstore.open(
        f"file://{world.root / 'tier'}", state=world.root / "store" if has_state else None
    )
    report = jobs.copy(
        origin,
        to=f"file://{world.root / 'copy'}",
        to_state=world.root / "copy-state",
    )
    assert (report["failed"], report["notes"]) == ([], [])


def open_restored(world: TieredLocal, root: Path) -> tuple[TieredLocal, dict[str, int]]:
    """Restore a broker from the copy into another folder, and open it."""
    shutil.copytree(world.root / "copy", root / "tier")
    report = jobs.restore(f"file://{root / 'tier'}", root / "store")
    assert (report["damage"], report["problems"], report["offsets_lowered"]) == (0, [], [])
    ends = {row["topic"]: row["end_offset"] for row in report["queue_ends"]}
    return TieredLocal(root, StillClock(world.clock.now_ms()), **world.keys), ends


@pytest.mark.parametrize("has_state", [False, True])
def test_t79_a_broker_restored_from_a_copy_gives_out_no_offset_of_an_expired_queue(
    world: TieredLocal, tmp_path: Path, has_state: bool
) -> None:
    copy(world, has_state=has_state)
    copy(world, has_state=has_state)
    restored, ends = open_restored(world, tmp_path / "restored")
    assert ends == {"A": 6, "K": 2}
    assert (restored.root / "store/config/topics.json").read_text() == TOPICS
    assert restored.put("A", b"next") == [6]
    assert restored.put("K", b"next") == [2]
    restored.upload()
    assert restored.read("A") == [(6, b"next")]
    restored.close()


@pytest.mark.parametrize("has_state", [False, True])
def test_t79_a_copy_goes_on_where_a_queue_had_expired(
    world: TieredLocal, tmp_path: Path, has_state: bool
) -> None:
    copy(world, has_state=has_state)
    world.put("A", b"more")
    world.upload()
    world.store.index.seal_and_upload(force=True)
    world.store.backup.run_once(is_last=True)
    copy(world, has_state=has_state)
    restored, ends = open_restored(world, tmp_path / "restored")
    assert ends == {"A": 7, "K": 2}
    assert restored.read("A") == [(6, b"more")]
    restored.close()


def test_t79_a_copy_leaves_the_backups_of_a_store_that_continues_in_the_target(
    world: TieredLocal, tmp_path: Path
) -> None:
    copy(world, has_state=False)
    restored, _ = open_restored(world, tmp_path / "restored")
    (restored.root / "store/config/topics.json").write_text(TOPICS.replace("K", "Z"))
    restored.close()
    report = jobs.copy(
        f"file://{world.root / 'tier'}",
        to=f"file://{restored.root / 'tier'}",
        to_state=world.root / "copy-state",
    )
    assert report["failed"] == []
    provider = PosixProvider(restored.root / "tier", "DefaultCluster")
    found = find_backup(provider, "broker-a", BackupKind.CONFIG)
    assert found is not None
    assert b'"Z"' in found.archive.contents["topics.json"]
    provider.close()
