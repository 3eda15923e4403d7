"""The local disk is lost just before or after any change that a deletion makes in the tier. A
restore never gives an already used offset to another message. Each scenario runs once, and the tier
is copied before and after each change. Each copy is then restored separately."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.generations import HOUR_MS, StillClock, expire_all, keep_topics, make_world
from tests.kit.local_stores import START_MS
from tests.kit.tiered_local import TieredLocal
from tieredstore import jobs
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.jobs.operating.moving import reset_queues
from tieredstore.providers.posix.provider import PosixFileSegment, PosixProvider
from tieredstore.scan.location import locate

OLD = [b"old%d" % number for number in range(6)]


class Copies:
    """Copies of a tier. One copy is made at each change of the tier."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.taken: list[tuple[str, Path]] = []
        for owner, name in (
            (PosixFileSegment, "delete"),
            (PosixFileSegment, "write"),
            (PosixProvider, "write_backup"),
            (PosixProvider, "delete_backups"),
        ):
            monkeypatch.setattr(owner, name, self._watch(owner, name))
        self.is_on = False

    def _watch(self, owner: type, name: str) -> Callable[..., Any]:
        real = getattr(owner, name)

        def change(*arguments: Any) -> Any:
            on = arguments[0].id if hasattr(arguments[0], "id") else arguments[1:2]
            called = f"{name} {on}"
            self._take(f"before {called}")
            try:
                return real(*arguments)
            finally:
                self._take(f"behind {called}")

        return change

    def _take(self, point: str) -> None:
        if self.is_on:
            copy = self.root / "copies" / str(len(self.taken))
            shutil.copytree(self.root / "tier", copy)
            self.taken.append((point, copy))


def expire(world: TieredLocal) -> None:
    expire_all(world)


def delete(world: TieredLocal) -> None:
    assert world.store.delete_topics({"T"}) == 1


def reset(world: TieredLocal) -> None:
    world.close()
    location = locate(f"file://{world.root / 'tier'}", state=world.root / "store")
    reset_queues(location, "T", yes=True, clock=SYSTEM_CLOCK)


def reset_broken(world: TieredLocal) -> None:
    """Reset a queue whose metadata lacks some of its segments."""
    world.close()
    provider = PosixProvider(world.root / "tier", "DefaultCluster", fsync=False)
    provider.open(SegmentId("broker-a/T/0", FileSegmentType.COMMIT_LOG, 1 << 20)).write(0, [b"?"])
    provider.close()
    location = locate(f"file://{world.root / 'tier'}", state=world.root / "store")
    reset_queues(location, "T", yes=True, clock=SYSTEM_CLOCK)


@pytest.mark.parametrize("act", [expire, delete, reset, reset_broken])
def test_t75_a_disk_that_is_lost_at_any_write_of_a_deletion_gives_out_no_offset_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[TieredLocal], None]
) -> None:
    copies = Copies(tmp_path, monkeypatch)
    world = make_world(tmp_path)
    keep_topics(world)
    world.put("K", b"kept")
    world.upload()
    world.store.backup.run_once(is_last=True)  # it does not know the messages of T
    world.clock.advance(HOUR_MS)
    world.put("T", *OLD)
    world.upload()
    copies.is_on = True
    act(world)
    copies.is_on = False
    world.close()
    assert len(copies.taken) >= 8
    for number, (point, copy) in enumerate(copies.taken):
        root = tmp_path / f"restored{number}"
        root.mkdir()
        shutil.copytree(copy, root / "tier")
        restored = TieredLocal.__new__(TieredLocal)
        restored.root, restored.keys, restored.clock = root, world.keys, StillClock(START_MS)
        jobs.restore(f"file://{root / 'tier'}", root / "store")
        restored.open()
        [offset] = restored.put("T", b"next")
        print(point, offset)
        assert offset >= 6, f"{point}: offset {offset} is given out again"
        restored.close()
