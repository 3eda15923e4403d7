"""Steps for tests of topics that are deleted, recreated, expired and restored."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from tests.kit.local_stores import START_MS
from tests.kit.tiered_local import TieredLocal
from tieredstore import jobs
from tieredstore.clock import ManualClock
from tieredstore.errors import Unavailable
from tieredstore.providers.posix.provider import PosixFileSegment

HOUR_MS = 3_600_000
TOPICS = (
    '{"topicConfigTable":{"K":{"topicName":"K","readQueueNums":1,"writeQueueNums":1,"perm":6}}}'
)


class StillClock(ManualClock):
    """Clock on which waits of background threads never time out, so that background loops do not
    run."""

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        if threading.current_thread() is threading.main_thread():
            return super().wait(event, timeout_ms)
        event.wait()
        return True


def make_world(root: Path, **keys: object) -> TieredLocal:
    """Return a store with a tier and without background loops. `keys` are further Java
    properties."""
    settings: dict[str, object] = {
        "tieredStorageLevel": "NOT_IN_DISK",
        "tieredStoreFileReservedTime": 720,
        "tieredStoreBackupInterval": 60_000,
        "mappedFileSizeCommitLog": 1 << 14,
    }
    return TieredLocal(root, StillClock(START_MS), **settings | keys)


def keep_topics(world: TieredLocal) -> None:
    """Write the broker's topic table, so that its backups include it."""
    (world.root / "store" / "config" / "topics.json").write_text(TOPICS)


class Refused:
    """Context manager in which the backend refuses to delete segments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch

    def __enter__(self) -> None:
        def refuse(_segment: PosixFileSegment) -> None:
            raise Unavailable("delete refused for a while")

        self.real = PosixFileSegment.delete
        self.patch.setattr(PosixFileSegment, "delete", refuse)

    def __exit__(self, *_: object) -> None:
        self.patch.setattr(PosixFileSegment, "delete", self.real)


def lose_disk(world: TieredLocal) -> None:
    """Kill the broker and delete its local disk, but not its tier."""
    for service in (world.store.dispatcher, world.store.expiry, world.store.backup):
        service.stop()
    shutil.copytree(world.root / "tier", world.root / "kept-tier")
    world.close()
    for name in ("tier", "store"):
        shutil.rmtree(world.root / name)
    shutil.move(world.root / "kept-tier", world.root / "tier")


def restore(world: TieredLocal) -> dict[str, int]:
    """Restore the store from its tier, and return the next offset of each queue."""
    report = jobs.restore(f"file://{world.root / 'tier'}", world.root / "store")
    assert not report["damage"]
    assert not report["problems"]
    return {row["topic"]: row["end_offset"] for row in report["queue_ends"]}


def expire_all(world: TieredLocal) -> None:
    """Expire all messages in the tier."""
    world.clock.advance(800 * HOUR_MS)
    world.store.expiry.retention_clock.begin(world.clock.now_ms())
    assert world.store.expiry.run_once().errors == {}
