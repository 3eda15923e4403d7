"""Topics are deleted, and recreated under the same names. The tests combine this with older
metadata, a disabled tier, a backend that cannot delete, restores, and followers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.configured_broker import conf
from tests.kit.generations import HOUR_MS, Refused, keep_topics, lose_disk, make_world, restore
from tests.kit.local_stores import START_MS
from tests.kit.tiered_local import TieredLocal
from tieredstore import registry
from tieredstore.cli.reading_broker import _load, _prepare
from tieredstore.clock import ManualClock
from tieredstore.contracts.backups import BackupName
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Unavailable
from tieredstore.jobs.metadata.following import TierFollower
from tieredstore.local.queues.topic_deletions import KEPT_FILE
from tieredstore.message.encoding import Message
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.location import locate
from tieredstore.tier.deleted.records import KINDS, drop_deleted_segments
from tieredstore.tier.upload.outcome import DispatchStatus

OLD = [b"old%d" % n for n in range(6)]
NEW = [b"new%d" % n for n in range(4)]
PRESENT = [*enumerate(NEW, 6)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TieredLocal]:
    world = make_world(tmp_path, fileReservedTime=1)
    world.put("K", b"kept")
    world.put("T", *OLD, key="old")
    world.upload()
    yield world
    world.close()


class Unrecorded:
    """Provider that refuses to store records of deleted topics for some time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch

    def __enter__(self) -> None:
        self.real = PosixProvider.write_backup

        def refuse(tier: PosixProvider, broker: str, name: BackupName, data: bytes) -> None:
            if name.kind in KINDS:
                raise Unavailable("the record is refused for a while")
            self.real(tier, broker, name, data)

        self.patch.setattr(PosixProvider, "write_backup", refuse)

    def __exit__(self, *_: object) -> None:
        self.patch.setattr(PosixProvider, "write_backup", self.real)


def keep_metadata(world: TieredLocal) -> None:
    """Copy the metadata files, as a nightly backup does."""
    world.store.flat_files.metadata.flush()
    (world.root / "older").mkdir()
    for path in (world.root / "store" / "config").glob("tieredStoreMetadata.json*"):
        shutil.copy(path, world.root / "older" / path.name)


def put_back_metadata(world: TieredLocal) -> None:
    config = world.root / "store" / "config"
    for path in config.glob("tieredStoreMetadata.json*"):
        path.unlink()
    for path in (world.root / "older").iterdir():
        shutil.copy(path, config / path.name)


def make_again(world: TieredLocal) -> None:
    assert world.put("T", *NEW, key="new") == [6, 7, 8, 9]
    world.upload()


def clean(world: TieredLocal) -> None:
    """Delete the local log, including its records of deletions."""
    for _ in range(4):
        world.put("K", *[b"k" * 500] * 40)
        if world.store.flat_files.files():
            world.upload()
    world.local.flush()
    for _ in range(3):
        world.clock.advance(26 * HOUR_MS)
        world.local.execute_delete_files_manually()
        world.local.cleaning.run_once()


def find_by_key(world: TieredLocal, key: str) -> list[bytes]:
    return [bytes(m.body) for m in world.store.query_message("T", key, 99, 0, 2**62)]


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_t30_older_metadata_neither_deletes_nor_hides_a_topic_made_again(
    world: TieredLocal, is_cleaned: bool
) -> None:
    keep_metadata(world)
    world.store.delete_topics({"T"})
    make_again(world)
    if is_cleaned:
        clean(world)
    world.close()
    put_back_metadata(world)
    for _ in range(2):
        world.open()
        assert world.read("T") == PRESENT
        world.store.expiry.run_once()
        assert world.read("T") == PRESENT
        assert find_by_key(world, "old") == []
        assert sorted(find_by_key(world, "new")) == NEW
        world.close()
    world.open()
    assert world.put("T", b"more") == [10]
    world.upload()
    assert world.store.flat_files.broken_queues == {}


def test_t30_older_metadata_that_announces_a_deletion_deletes_nothing_of_the_topic_made_again(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Refused(monkeypatch):
        world.store.delete_topics({"T"})
    keep_metadata(world)
    assert world.store.expiry.run_once().undeleted == 0
    assert world.tier_files("T") == []
    make_again(world)
    clean(world)
    world.close()
    put_back_metadata(world)
    world.open()
    world.store.expiry.run_once()
    assert world.read("T") == PRESENT


def test_t30_no_segment_name_comes_twice(world: TieredLocal) -> None:
    before = {path.relative_to(world.root) for path in world.tier_files("T")}
    for _ in range(3):
        world.store.delete_topics({"T"})
        world.put("T", *NEW)
        world.upload()
        present = {path.relative_to(world.root) for path in world.tier_files("T")}
        assert len(present) == 2
        assert not present & before
        before |= present


def check_deletion_without_the_tier(world: TieredLocal) -> None:
    clean(world)
    assert dict(world.local.topic_deletions.find_all()) == {}
    again = world.put("T", *NEW, key="new")
    world.reopen()
    world.upload()
    for _ in range(2):
        assert world.read("T") == [*zip(again, NEW, strict=True)]
        assert find_by_key(world, "old") == []
        world.reopen()
    assert world.local.kept_deletions.find_all() == {}


def test_t31_a_topic_deleted_while_the_tier_is_switched_off_does_not_return(
    world: TieredLocal,
) -> None:
    """A topic is deleted while the tier is disabled. Its deletion record expires with the local log
    before the tier is enabled again. The topic does not return."""
    world.reopen(tieredStorageLevel="DISABLE")
    assert world.store.delete_topics({"T"}) == 1
    check_deletion_without_the_tier(world)


def test_t31_a_topic_deleted_without_the_plugin_does_not_return(world: TieredLocal) -> None:
    """A topic that is deleted while the plugin is missing from the configuration does not
    return."""
    world.close()
    alone = registry.message_store(conf(world.root, **{**world.keys, "messageStorePlugIn": ""}))
    alone.load()
    alone.start()
    assert alone.delete_topics({"T"}) == 1
    alone.shutdown()
    world.open(tieredStorageLevel="DISABLE")
    check_deletion_without_the_tier(world)


def test_t31_a_store_without_a_tier_keeps_no_deletions(tmp_path: Path) -> None:
    loaded = conf(tmp_path, messageStorePlugIn="")
    store = registry.message_store(loaded)
    store.load()
    store.start()
    store.put_message(Message.create("T", b"x", queue_id=0))
    assert store.delete_topics({"T"}) == 1
    store.shutdown()
    assert not (tmp_path / "store" / KEPT_FILE).exists()


def test_t31_a_deleted_topic_does_not_return_with_a_restore(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_topics(world)
    with Refused(monkeypatch):
        assert world.store.delete_topics({"T"}) == 1
        world.store.backup.run_once(is_last=True)
        lose_disk(world)
    assert restore(world) == {"K": 1}
    world.open()
    assert world.read("T") == []
    assert find_by_key(world, "old") == []
    world.store.expiry.run_once()
    assert world.tier_files("T") == []
    make_again(world)
    assert world.read("T") == PRESENT


def test_t31_a_backup_from_before_the_deletion_does_not_bring_a_topic_back(
    world: TieredLocal,
) -> None:
    keep_topics(world)
    world.store.backup.run_once(is_last=True)
    world.store.delete_topics({"T"})
    lose_disk(world)
    assert restore(world) == {"K": 1}
    world.open()
    assert world.store.flat_files.metadata.topic("T") is None
    make_again(world)


def test_t32_a_restore_gives_out_no_offset_of_an_expired_queue_again(world: TieredLocal) -> None:
    """A restore does not reuse the offsets of an expired queue. The queue received messages after
    one backup of the metadata, and expired before the next backup."""
    keep_topics(world)
    world.store.backup.run_once(is_last=True)
    world.put("T", *OLD)
    world.clock.advance(800 * HOUR_MS)
    world.put("K", b"late")
    world.upload()
    world.store.expiry.retention_clock.begin(world.clock.now_ms())
    assert world.store.expiry.run_once().segments > 0
    assert world.tier_files("T") == []
    lose_disk(world)
    assert restore(world)["T"] == 12
    world.open()
    assert world.put("T", b"next") == [12]


def test_t32_an_expiry_deletes_nothing_while_the_backup_cannot_be_renewed(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.store.backup.run_once(is_last=True)
    world.clock.advance(800 * HOUR_MS)
    world.store.expiry.retention_clock.begin(world.clock.now_ms())
    monkeypatch.setattr(world.store.flat_files, "renew_restore_point", lambda: False)
    assert world.store.expiry.run_once().undeleted > 0
    assert len(world.tier_files("T")) == 2
    monkeypatch.undo()
    assert world.store.expiry.run_once().undeleted == 0
    assert world.tier_files("T") == []


@pytest.mark.parametrize("is_refused", [False, True])
def test_t33_a_follower_stops_serving_a_deleted_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    """A read-only follower stops serving the tier's only topic after the topic was deleted. With
    `is_refused`, the backend refuses to delete the segments for some time."""
    world = TieredLocal(tmp_path / "w", ManualClock(START_MS), tieredStorageLevel="NOT_IN_DISK")
    world.put("T", *OLD, key="old")
    world.upload()
    location = locate(f"file://{tmp_path / 'w' / 'tier'}", cluster=None, broker=None, config=None)
    _prepare(tmp_path / "reader")
    follower = TierFollower.open(location, tmp_path / "reader")
    loaded = _load(location, tmp_path / "reader", follower.broker)
    reader = registry.message_store(loaded, world.clock)
    reader.load()
    reader.start()
    follower.follow(reader)
    assert world.read("T", store=reader) == [*enumerate(OLD)]
    if is_refused:
        with Refused(monkeypatch):
            world.store.delete_topics({"T"})
    else:
        world.store.delete_topics({"T"})
    follower.follow(reader)
    assert world.read("T", store=reader) == []
    make_again(world)
    follower.follow(reader)
    assert world.read("T", store=reader) == PRESENT
    reader.shutdown()
    world.close()


def test_t34_a_topic_made_again_is_uploaded_once_its_failed_deletion_is_finished(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = world.store.dispatcher
    with Unrecorded(monkeypatch):
        with pytest.raises(Unavailable):
            world.store.delete_topics({"T"})
        world.put("T", *NEW, key="new")
        world.put("K", b"other")
        last_good_ms = dispatcher.last_good_scan_ms
        world.local.flush()
        outcomes = {outcome.key.topic: outcome for outcome in dispatcher.scan(force=True)}
        assert outcomes["T"].status is DispatchStatus.FAILED
        assert outcomes["K"].status is DispatchStatus.UPLOADED
        assert "refused for a while" in dispatcher.failing_queues[QueueKey("T", 0)]
        assert dispatcher.last_good_scan_ms == last_good_ms
        assert world.read("T") == PRESENT
    world.upload()  # without a run of the expiry
    assert dispatcher.failing_queues == {}
    file = world.store.flat_files.get("T", 0)
    assert file is not None
    assert file.consume_queue_commit_offset == len(OLD) + len(NEW)
    assert len(world.tier_files("T")) == 2
    assert world.local.kept_deletions.find_all() == {}
    for _ in range(2):
        assert world.read("T") == PRESENT
        assert world.store.query_message("T", "old", 32, 0, 2**62) == []
        world.reopen()


def test_t34_a_deletion_that_failed_is_finished_without_expiry_and_without_new_messages(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Unrecorded(monkeypatch), pytest.raises(Unavailable):
        world.store.delete_topics({"T"})
    assert world.tier_files("T")
    world.upload()
    assert world.tier_files("T") == []
    assert world.store.flat_files.metadata.topic("T") is None
    assert world.store.flat_files.deleted.list_pending() == []
    assert world.local.kept_deletions.find_all() == {}


@pytest.mark.parametrize("backlog", ["all", "recent"])
def test_t34_the_local_store_keeps_what_waits_for_a_deletion(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch, backlog: str
) -> None:
    world.reopen(tieredStoreBacklog=backlog)
    with Unrecorded(monkeypatch):
        with pytest.raises(Unavailable):
            world.store.delete_topics({"T"})
        world.put("T", *NEW)
        assert world.store.dispatcher.retention_guard(QueueKey("T", 0)) == 0
    world.upload()
    end = len(OLD) + len(NEW)
    assert world.store.dispatcher.retention_guard(QueueKey("T", 0)) == end


def test_t34_an_expiry_goes_on_with_other_deletions(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Refused(monkeypatch):
        world.store.delete_topics({"T"})
    assert world.tier_files("T")
    with Unrecorded(monkeypatch):
        with pytest.raises(Unavailable):
            world.store.delete_topics({"K"})
        assert world.store.expiry.run_once().undeleted == 0
    assert world.tier_files("T") == []
    assert world.tier_files("K")
    assert world.store.expiry.run_once().undeleted == 0
    assert world.tier_files("K") == []
    assert world.read("K") == []


def test_t72_a_topic_deleted_beside_a_tier_in_which_it_has_expired_is_recorded(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tier gets a record of a topic's deletion even if all the topic's messages in the tier
    have expired. The expired segments still exist, because the backend refuses to delete them."""
    world.clock.advance(800 * HOUR_MS)
    world.store.expiry.retention_clock.begin(world.clock.now_ms())
    with Refused(monkeypatch):
        assert world.store.expiry.run_once().undeleted > 0
        world.reopen(tieredStorageLevel="DISABLE")
        assert world.store.delete_topics({"T"}) == 1
        world.reopen(tieredStorageLevel="FORCE")
        files = world.store.flat_files
        assert files.metadata.topic("T") is None
        record = files.deleted.get("T")
        assert record is not None
        assert record.is_pending
        left = drop_deleted_segments(
            files.provider, {item.id: item for item in files.provider.list("broker-a")}
        )
        assert [one for one in left if one.path == "broker-a/T/0"] == []
    assert world.put("T", b"next") == [6]
