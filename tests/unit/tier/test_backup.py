"""Tests of the backups of config/ in the tier: files, times, writers and retention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.waiting import wait_for
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.backups import BackupKind, BackupName
from tieredstore.disk.file_archive import unpack_files
from tieredstore.errors import Fenced, Unavailable
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.service_thread import ServiceState
from tieredstore.tier.backup import METADATA_INTERVAL_MS, TierBackup
from tieredstore.tier.writing import TierWriter

T0 = 1_700_000_000_000
BROKER = "broker-a"
Provider = PosixProvider | ChunkProvider | MemoryProvider


class World:
    """A state directory, a tier, and the backups of successive processes."""

    def __init__(self, root: Path, provider: Provider, **config: object) -> None:
        self.state = root / "store"
        self.provider = provider
        self.config = StoreConfig(broker_name=BROKER, **config)  # type: ignore[arg-type]
        self.clock = ManualClock(T0)
        self.open_ones = ExitStack()
        (self.state / "config").mkdir(parents=True)
        self.write("topics.json", "topics 1")

    def write(self, name: str, text: str) -> None:
        (self.state / "config" / name).write_text(text)

    def start(self, *, take_over: bool = False) -> TierBackup:
        path = self.state / "config" / "tieredStoreMetadata.json"
        self.metadata = DefaultMetadataStore(path, BROKER, self.clock)
        self.writer = TierWriter.acquire(self.provider, self.metadata, BROKER, take_over=take_over)
        self.open_ones.callback(self.writer.release)
        backup = TierBackup(self.config, self.provider, self.state, self.clock, self.metadata.flush)
        backup.become_writer(self.writer)
        self.open_ones.callback(backup.finish)
        self.open_ones.callback(backup.stop)
        return backup

    def stop(self) -> None:
        self.open_ones.close()

    def names(self, kind: BackupKind = BackupKind.CONFIG) -> list[BackupName]:
        return [name for name in self.provider.list_backups(BROKER) if name.kind is kind]

    def contents(self, kind: BackupKind = BackupKind.CONFIG) -> dict[str, bytes]:
        """Return the content of the newest backup."""
        data = self.provider.read_backup(BROKER, self.names(kind)[-1])
        assert data is not None
        return unpack_files(data, 1, "backup").contents


@pytest.fixture(params=["posix", "objects"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    provider: Provider = (
        PosixProvider(tmp_path / "tier", "C", fsync=False)
        if request.param == "posix"
        else chunk_provider()
    )
    world = World(tmp_path, provider)
    yield world
    world.stop()
    provider.close()


def test_topics_groups_and_offsets_are_copied_and_neither_users_nor_what_is_not_in_the_tier(
    world: World,
) -> None:
    for name in ("consumerOffset.json", "subscriptionGroup.json", "delayOffset.json"):
        world.write(name, f"of {name}")
    for name in ("authUsers.json", "plain_acl.yml", "topics.json.bak", "consumerOffset.json.tmp"):
        world.write(name, "secret")
    made = world.start().run_once()
    assert [name.kind for name in made] == [BackupKind.CONFIG]
    assert world.contents() == {
        "topics.json": b"topics 1",
        "subscriptionGroup.json": b"of subscriptionGroup.json",
        "consumerOffset.json": b"of consumerOffset.json",
    }


def test_a_backup_says_when_it_was_made_and_of_which_store(world: World) -> None:
    world.start().run_once()
    data = world.provider.read_backup(BROKER, world.names()[0])
    assert data is not None
    manifest = unpack_files(data, 1, "backup").manifest
    assert manifest.taken_ms == T0
    assert manifest.notes["brokerName"] == BROKER
    assert manifest.notes["mappedFileSizeCommitLog"] == str(1 << 30)
    assert manifest.notes["enableLmq"] == "false"


def test_what_has_not_changed_is_not_copied_again(world: World) -> None:
    backup = world.start()
    assert len(backup.run_once()) == 1
    assert backup.run_once() == []
    world.write("topics.json", "topics 2")
    assert len(backup.run_once()) == 1
    assert world.contents()["topics.json"] == b"topics 2"


def test_two_are_kept_over_all_writers(world: World) -> None:
    names: list[BackupName] = []
    for turn in range(4):
        backup = world.start()
        for part in range(2):
            world.write("topics.json", f"topics {turn}.{part}")
            names += backup.run_once()
        world.stop()
        assert world.names() == names[-2:]
        assert sorted(names) == names
    assert world.contents()["topics.json"] == b"topics 3.1"


def test_the_stop_copies_what_has_changed_with_the_metadata(world: World) -> None:
    world.start().start()
    world.write("topics.json", "topics 2")
    world.metadata.add_topic("TopicA")
    world.stop()
    assert world.contents()["topics.json"] == b"topics 2"
    assert b"TopicA" in world.contents(BackupKind.METADATA)["tieredStoreMetadata.json"]


def test_the_metadata_goes_once_an_hour(world: World) -> None:
    backup = world.start()
    counts = []
    for topic in ("A", "B", "C"):
        world.metadata.add_topic(topic)
        counts.append(sum(name.kind is BackupKind.METADATA for name in backup.run_once()))
        world.clock.advance(METADATA_INTERVAL_MS // 2)
    assert counts == [1, 0, 1]


def test_a_file_that_is_just_being_replaced_is_read_from_its_backup(world: World) -> None:
    (world.state / "config" / "topics.json").rename(world.state / "config" / "topics.json.bak")
    world.start().run_once()
    assert world.contents() == {"topics.json": b"topics 1"}


def test_an_empty_file_takes_the_place_of_no_backup(world: World) -> None:
    world.write("topics.json.bak", "topics 0")
    world.write("topics.json", "")
    world.start().run_once()
    assert world.contents() == {"topics.json": b"topics 0"}


def test_it_happens_at_the_interval(world: World) -> None:
    backup = world.start()
    assert world.names() == []
    backup.start()
    wait_for(lambda: bool(world.names()))
    assert backup.health()[0].state is ServiceState.RUNNING


@pytest.mark.parametrize("why", ["interval", "memory"])
def test_nothing_is_copied_where_nobody_wants_it_or_nothing_lasts(tmp_path: Path, why: str) -> None:
    provider: Provider = (
        MemoryProvider() if why == "memory" else PosixProvider(tmp_path / "tier", "C")
    )
    world = World(tmp_path, provider, backup_interval_ms=0 if why == "interval" else 60_000)
    backup = world.start()
    assert backup.run_once() == []
    assert backup.health() == []
    world.stop()
    assert provider.list_backups(BROKER) == []


def test_a_store_without_files_in_config_has_no_backup(world: World) -> None:
    (world.state / "config" / "topics.json").unlink()
    assert world.start().run_once() == []


def test_a_sweep_of_garbage_leaves_backups_alone(tmp_path: Path) -> None:
    provider = chunk_provider()
    world = World(tmp_path, provider)
    for turn in range(3):  # those of former epochs too
        world.write("topics.json", f"topics {turn}")
        backup = world.start()
        made = backup.run_once()
        provider.run_maintenance(sweep=True)
        assert made[0] in world.names()
        world.stop()
    assert len(world.names()) == 2


class LateWriter:
    """A former and a new writer on one object store, each with a state directory."""

    def __init__(self, root: Path) -> None:
        client = MemoryObjectClient()
        self.old = World(root / "old", chunk_provider(client))
        self.new = World(root / "new", chunk_provider(client))


def test_w03_who_lost_the_right_copies_nothing_and_deletes_nothing(tmp_path: Path) -> None:
    both = LateWriter(tmp_path)
    old = both.old.start()
    old.run_once()
    new = both.new.start(take_over=True)
    both.new.write("topics.json", "of the successor")
    new.run_once()
    both.old.write("topics.json", "late 1")
    with pytest.raises(Fenced):
        old.run_once()
    both.old.write("topics.json", "late 2")
    with pytest.raises(Fenced):
        old.run_once()
    assert both.new.contents()["topics.json"] == b"of the successor"
    both.old.stop()
    assert both.new.contents()["topics.json"] == b"of the successor"
    both.new.stop()


class LosingClient(MemoryObjectClient):
    """Makes the next writes of backups fail. With `is_applied`, a failed write has still taken
    effect."""

    lost = 0
    is_applied = True

    def request(self, operation: str, key: str) -> None:
        if not self.is_applied:
            self._lose(operation, key)

    def reply(self, operation: str, key: str) -> None:
        if self.is_applied:
            self._lose(operation, key)

    def _lose(self, operation: str, key: str) -> None:
        if operation == "PUT" and ".backups" in key and self.lost:
            self.lost -= 1
            raise Unavailable(f"{key}: no reply")


@pytest.mark.parametrize("is_applied", [True, False])
def test_after_a_lost_reply_no_name_is_used_twice_and_two_are_kept(
    tmp_path: Path, is_applied: bool
) -> None:
    client = LosingClient()
    client.is_applied = is_applied
    world = World(tmp_path, chunk_provider(client))
    backup = world.start()
    backup.run_once()
    world.write("topics.json", "topics 2")
    client.lost = 1
    with pytest.raises(Unavailable):
        backup.run_once()
    [made] = [name for name in backup.run_once() if name.kind is BackupKind.CONFIG]
    assert made.sequence == 3
    assert [name.sequence for name in world.names()] == ([2, 3] if is_applied else [1, 3])
    assert world.contents()["topics.json"] == b"topics 2"
    world.stop()
