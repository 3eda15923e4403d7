"""A broker is killed before or after each write of a deletion record. It is also killed at each
write of the local file that lists deletions without a record in the tier. The next start finishes
the deletion, and loses no other data."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.generations import StillClock
from tests.kit.local_stores import START_MS
from tests.kit.tiered_local import TieredLocal
from tieredstore.contracts.backups import BackupName
from tieredstore.disk.file_operations import FileOperations
from tieredstore.local.queues.topic_deletions import KEPT_FILE
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.testing.faults import SimulatedCrash
from tieredstore.tier.deleted.records import KINDS
from tieredstore.tier.state_files import RECORDS_LEFT_FILE

MOST_WRITES = 8
OLD = [b"old%d" % n for n in range(4)]
NEW = [b"new%d" % n for n in range(3)]


class Killer:
    """Ends the process before or after write number `at`, counted from 0."""

    def __init__(self, at: int, *, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.after, self.seen = at, after, 0
        write, replace = PosixProvider.write_backup, FileOperations.replace_file
        monkeypatch.setattr(
            PosixProvider,
            "write_backup",
            lambda provider, broker, name, data: self._run(
                is_counted=isinstance(name, BackupName) and name.kind in KINDS,
                write=lambda: write(provider, broker, name, data),
            ),
        )
        monkeypatch.setattr(
            FileOperations,
            "replace_file",
            lambda files, path, data, **more: self._run(
                is_counted=path.name in {KEPT_FILE, RECORDS_LEFT_FILE},
                write=lambda: replace(files, path, data, **more),
            ),
        )

    def _run(self, *, is_counted: bool, write: Callable[[], None]) -> None:
        if not is_counted:
            write()
            return
        number, self.seen = self.seen, self.seen + 1
        if number != self.at:
            write()
            return
        if self.after:
            write()
        raise SimulatedCrash(f"write {number}")


def kill(world: TieredLocal) -> None:
    """End the process. The next process starts with the disk in its current state."""
    root = world.root
    for service in (world.store.dispatcher, world.store.expiry, world.store.backup):
        service.stop()
    shutil.copytree(root / "store", root / "killed", ignore=shutil.ignore_patterns("lock"))
    shutil.copytree(root / "tier", root / "killed-tier")
    world.close()
    for name, killed in (("store", "killed"), ("tier", "killed-tier")):
        shutil.rmtree(root / name)
        shutil.move(root / killed, root / name)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(MOST_WRITES))
def test_t31_a_kill_at_a_write_of_a_deletion_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, after: bool
) -> None:
    world = TieredLocal(tmp_path / "w", StillClock(START_MS), tieredStorageLevel="FORCE")
    world.put("K", b"kept")
    world.put("T", *OLD)
    world.upload()
    with monkeypatch.context() as patch:
        killer = Killer(at, after=after, monkeypatch=patch)
        try:
            world.store.delete_topics({"T"})
            world.store.expiry.run_once()
            world.reopen()
        except SimulatedCrash:
            pass
        else:
            assert killer.seen <= at  # there are no more writes
    kill(world)
    world.open()
    assert world.read("T") == []
    assert world.read("K") == [(0, b"kept")]
    begin = len(OLD)
    assert world.put("T", *NEW) == [*range(begin, begin + len(NEW))]
    world.upload()
    for _ in range(2):
        assert world.read("T") == [*enumerate(NEW, begin)]
        world.store.expiry.run_once()
        world.reopen()
    assert world.local.kept_deletions.find_all() == {}
    assert len(world.tier_files("T")) == 2
    world.close()
