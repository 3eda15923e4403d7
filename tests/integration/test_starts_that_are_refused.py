"""A start that was refused or killed leaves no data that prevents the next start."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.belonging import SharedTier, Stopped
from tests.kit.command_line import tieredstore
from tests.kit.generations import Refused
from tieredstore import jobs
from tieredstore.contracts.tier_identity import TierMark
from tieredstore.errors import Fenced, Invalid
from tieredstore.providers.chunks.epochs import marks
from tieredstore.providers.chunks.epochs.writers import Writers
from tieredstore.providers.posix import own_files
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.listing import list_tier
from tieredstore.tier.deleted.records import find_deleted

KINDS = ["posix", "chunks"]
SMALL: dict[str, object] = {
    "tieredStoreCommitLogMaxSize": 3_000,
    "tieredStoreConsumeQueueMaxSize": 400,
    "tieredStorageLevel": "NOT_IN_DISK",
    "mappedFileSizeCommitLog": 1 << 14,
    "fileReservedTime": 1,
}
_NO_LOCKS = shutil.ignore_patterns("lock", "tieredstore.lock")


@pytest.fixture
def shared(tmp_path: Path) -> SharedTier:
    return SharedTier(tmp_path)


def make_opener(kind: str, shared: SharedTier) -> Callable[[], Stopped]:
    folder = shared.root / "broker"
    if kind == "chunks":
        return lambda: shared.open(folder, **SMALL)
    return lambda: Stopped(folder, shared.clock, **SMALL)


def replace_folder(target: Path, source: Path) -> None:
    shutil.rmtree(target)
    shutil.copytree(source, target, ignore=_NO_LOCKS)


def refuse_starts(open_store: Callable[[], Stopped], count: int, outcome: str) -> None:
    for _ in range(count):
        with pytest.raises(Invalid, match=outcome):
            open_store()


@pytest.mark.parametrize("kind", KINDS)
def test_w70_refused_starts_in_a_loop_put_no_store_behind(
    shared: SharedTier, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor restarts a broker repeatedly with an older copy of config/. After the refused
    starts, the current store still counts as the newest."""
    monkeypatch.setattr(own_files, "_KEPT_WRITERS", 8)
    monkeypatch.setattr(marks, "_MOST_WRITERS", 8)
    monkeypatch.setattr("tieredstore.tier.identity.belonging.KEPT_ATTEMPTS", 4)
    store = shared.root / "broker/store"
    open_store = make_opener(kind, shared)
    world = open_store()
    world.put("T", b"0")
    world.upload()
    world.close()
    shutil.copytree(store / "config", shared.root / "older")
    world.open()
    world.put("U", b"0")
    world.upload()
    world.close()
    shutil.copytree(store / "config", shared.root / "newer")
    replace_folder(store / "config", shared.root / "older")
    refuse_starts(open_store, 12, "metadata in config/ is an older copy")
    replace_folder(store / "config", shared.root / "newer")
    world = open_store()
    assert world.put("T", b"1") == [1]
    world.upload()
    assert [body for _, body in world.read("T")] == [b"0", b"1"]
    world.close()


@pytest.mark.parametrize("kind", KINDS)
def test_w70_the_newer_store_starts_after_an_older_copy_was_refused(
    shared: SharedTier, kind: str
) -> None:
    """The current store starts after an older copy of it was refused. The copy was made while the
    broker ran, so only the messages show that it is older."""
    store = shared.root / "broker/store"
    open_store = make_opener(kind, shared)
    world = open_store()
    world.put("T", b"0")
    world.upload()
    shutil.copytree(store, shared.root / "older", ignore=_NO_LOCKS)
    world.put("T", b"1", b"2")
    world.upload()
    world.close()
    shutil.copytree(store, shared.root / "newer", ignore=_NO_LOCKS)
    replace_folder(store, shared.root / "older")
    refuse_starts(open_store, 2, "the local store is an older copy")
    replace_folder(store, shared.root / "newer")
    world = open_store()
    assert [body for _, body in world.read("T")] == [b"0", b"1", b"2"]
    assert world.put("T", b"3") == [3]
    world.close()


@pytest.mark.parametrize("kind", KINDS)
def test_w71_an_older_copy_is_refused_where_it_lacks_a_queue(shared: SharedTier, kind: str) -> None:
    """An older copy is refused because it lacks a queue. The tier has this queue only in segments
    that the copy's metadata does not list."""
    store = shared.root / "broker/store"
    open_store = make_opener(kind, shared)
    world = open_store()
    world.put("T", b"0")
    world.upload()
    shutil.copytree(store, shared.root / "older", ignore=_NO_LOCKS)
    world.put("New", b"0", b"1")
    world.upload()
    world.close()
    replace_folder(store, shared.root / "older")
    refuse_starts(open_store, 1, "New/0: the tier has segments up to queue offset 2")


@pytest.mark.parametrize("kind", KINDS)
def test_w71_older_metadata_that_hides_messages_is_refused(shared: SharedTier, kind: str) -> None:
    """Older metadata that hides messages is refused. The copy of config/ was made in the same
    epoch, and the local store lacks some of the hidden messages."""
    store = shared.root / "broker/store"
    open_store = make_opener(kind, shared)
    world = open_store()
    world.put("T", *[b"%d" % number for number in range(20)])
    world.upload()
    shutil.copytree(store / "config", shared.root / "older")
    world.put("T", *[b"%d" % number for number in range(20, 400)])
    world.upload()
    clean(world)
    world.close()
    shutil.copytree(store / "config", shared.root / "newer")
    replace_folder(store / "config", shared.root / "older")
    refuse_starts(open_store, 1, "metadata in config/ is an older copy")
    replace_folder(store / "config", shared.root / "newer")
    world = open_store()
    assert [body for _, body in world.read("T")] == [b"%d" % number for number in range(400)]
    world.close()


def clean(world: Stopped) -> None:
    """Delete the uploaded messages from the local log."""
    world.clock.advance(26 * 3_600_000)
    world.local.cleaning._manual_rounds = 20
    world.local.cleaning.run_once()
    queue = world.local.find_queue("T", 0)
    assert queue is not None
    assert queue.min_offset > 60


@pytest.mark.parametrize("kind", KINDS)
def test_w72_an_older_copy_is_refused_that_was_made_before_its_messages_were_dispatched(
    shared: SharedTier, kind: str
) -> None:
    """An older copy is refused even if it was made before its messages were dispatched. In this
    case the ends of its queues are known only after the dispatch."""
    store = shared.root / "broker/store"
    open_store = make_opener(kind, shared)
    world = open_store()
    world.put("T", b"0")
    world.local.flush()
    older = shared.root / "older"
    shutil.copytree(store, older, ignore=_NO_LOCKS)
    shutil.rmtree(older / "consumequeue")  # it was not on disk yet
    world.put("T", b"1", b"2")
    world.upload()
    world.close()
    newer = shared.root / "newer"
    shutil.copytree(store, newer, ignore=_NO_LOCKS)
    shutil.copytree(newer / "config", older / "config", dirs_exist_ok=True)
    replace_folder(store, older)
    refuse_starts(open_store, 1, "the local store is an older copy")


def test_w70_a_store_that_is_only_starting_fences_nobody(
    shared: SharedTier, tmp_path: Path
) -> None:
    first = shared.open(tmp_path / "first")
    first.put("A", b"a0")
    first.upload()
    shutil.copytree(tmp_path / "first/store", tmp_path / "second/store", ignore=_NO_LOCKS)
    first.put("A", b"a1")
    first.upload()
    shared.take_over_epoch = first.epoch_number
    with pytest.raises(Invalid, match="older copy"):
        shared.open(tmp_path / "second")
    first.watch.run_once()
    first.watch.run_once()
    assert first.put_one("A", b"a2").ok
    assert first.watch.refusal is None
    first.close()


def test_w70_a_store_that_takes_messages_since_is_compared_with_again(
    shared: SharedTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store is compared with the tier at its start. Another store changes the tier before the
    first store acquires the next epoch. The first store is then compared again."""
    first = shared.open(tmp_path / "first")
    first.put("A", b"a0")
    first.upload()
    first.close()
    shutil.copytree(tmp_path / "first/store", tmp_path / "second/store", ignore=_NO_LOCKS)
    read_mark = Writers.read_mark
    others: list[Stopped] = []

    def read_then_start_the_other(writers: Writers, broker: str, since: int) -> TierMark:
        found = read_mark(writers, broker, since)
        if not others:
            monkeypatch.setattr(Writers, "read_mark", read_mark)
            others.append(shared.open(tmp_path / "first"))
            shared.take_over_epoch = others[0].epoch_number
        return found

    monkeypatch.setattr(Writers, "read_mark", read_then_start_the_other)
    with pytest.raises((Invalid, Fenced)):
        shared.open(tmp_path / "second")
    assert others[0].put_one("A", b"a1").ok
    others[0].close()


@pytest.mark.parametrize("kind", KINDS)
def test_w73_a_deletion_that_an_older_tier_lacks_is_finished_there(
    shared: SharedTier, kind: str
) -> None:
    """The tier is replaced by an older one that still has the segments of a deleted topic. The
    deletion is completed in this tier, although the metadata does not list the segments."""
    broker = shared.root / "broker"
    open_store = make_opener(kind, shared)
    world = open_store()
    world.put("T", b"0")
    world.put("Gone", b"0")
    world.upload()
    objects = shared.copy_objects()
    shared.take_over_epoch = world.epoch_number
    shutil.copytree(broker / "tier", shared.root / "older") if kind == "posix" else None
    world.store.delete_topics({"Gone"})
    world.local.flush()
    # A crash: the deletion is in the log, and not dispatched.
    shutil.copytree(broker / "store", shared.root / "crashed", ignore=_NO_LOCKS)
    world.close()
    replace_folder(broker / "store", shared.root / "crashed")
    if kind == "posix":
        replace_folder(broker / "tier", shared.root / "older")
    else:
        shared.put_objects(objects)
    for _ in range(2):
        world = open_store()
        assert world.read("Gone") == []
        assert len(world.read("T")) == 1
        world.close()
    world = open_store()
    world.put("Gone", b"new")
    world.upload()
    assert [body for _, body in world.read("Gone")] == [b"new"]
    world.close()


def test_w92_offsets_of_messages_that_the_metadata_alone_names_do_not_come_again(
    shared: SharedTier,
) -> None:
    """Queue offsets that only the metadata contains are not assigned again. The store and the tier
    are replaced by copies from the same moment. The directory config/ is newer, and consumer
    offsets in it refer to messages that the copies lack."""
    broker = shared.root / "broker"
    open_store = make_opener("posix", shared)
    world = open_store()
    world.put("T", b"0", b"1")
    world.upload()
    shutil.copytree(broker, shared.root / "older", ignore=_NO_LOCKS)
    world.put("T", b"2", b"3")
    world.upload()
    world.close()
    shutil.move(broker / "store/config", shared.root / "config")
    replace_folder(broker, shared.root / "older")
    replace_folder(broker / "store/config", shared.root / "config")
    refuse_starts(open_store, 2, r"names messages up to queue offset 4, .* continues at 2.*rebuild")
    ran = tieredstore(
        *("rebuild", "metadata", "--force", "--tier", f"file://{broker / 'tier'}"),
        *("--state", broker / "store"),
    )
    assert ran.code == 0
    world = Stopped(broker, shared.clock, **SMALL, tieredStoreAdopt=True)
    assert world.put("T", b"new") == [2]
    world.upload()
    world.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_again", [False, True])
@pytest.mark.parametrize("stop", ["clean", "killed", "of an earlier epoch", "twice"])
def test_w91_an_older_tier_does_not_bring_a_topic_back_that_the_log_forgot(
    shared: SharedTier, kind: str, stop: str, *, is_again: bool
) -> None:
    """An older tier does not bring back a deleted topic, even if the log no longer has the deletion
    record. With `is_again`, the topic is recreated after its deletion."""
    broker = shared.root / "broker"
    open_store = make_opener(kind, shared)
    world = open_store()
    world.put("T", b"0")
    world.put("Gone", b"0", b"1")
    world.upload()
    objects = shared.copy_objects()
    shutil.copytree(broker / "tier", shared.root / "older") if kind == "posix" else None
    shared.take_over_epoch = world.epoch_number
    if stop == "of an earlier epoch":
        world.reopen() if kind == "posix" else None
    world.store.delete_topics({"Gone"})
    if is_again:
        world.put("Gone", b"new")
        world.upload()
    else:
        forget_in_log(world)
    stop_as(world, broker / "store", stop)
    if kind == "posix":
        replace_folder(broker / "tier", shared.root / "older")
    else:
        shared.put_objects(objects)
    for _ in range(2):
        world = open_store()
        assert [body for _, body in world.read("Gone")] == ([b"new"] if is_again else [])
        shared.take_over_epoch = world.epoch_number
        world.close()
    provider = (
        PosixProvider(broker / "tier", "DefaultCluster") if kind == "posix" else shared.provider()
    )
    assert "Gone" in find_deleted(provider, "broker-a")
    found = list_tier(provider, "broker-a")
    assert {one.base_offset > 0 for one in found if "/Gone/" in one.path} <= {is_again}
    provider.close()


def test_w91_an_older_tier_that_had_not_deleted_the_segments_yet_does_not_bring_the_topic_back(
    shared: SharedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older copy of a tier has the record of a topic's deletion, and still has the topic's
    segments. It does not bring the topic back."""
    broker = shared.root / "broker"
    open_store = make_opener("posix", shared)
    world = open_store()
    world.put("T", b"0")
    world.put("Gone", b"0", b"1")
    world.upload()
    with Refused(monkeypatch):
        world.store.delete_topics({"Gone"})
        forget_in_log(world)
        world.reopen()
        shutil.copytree(broker / "tier", shared.root / "older")
    world.store.expiry.run_once()
    world.close()
    replace_folder(broker / "tier", shared.root / "older")
    for _ in range(2):
        world = open_store()
        assert world.read("Gone") == []
        world.store.expiry.run_once()
        assert world.tier_files("Gone") == []
        world.close()


@pytest.mark.parametrize("stop", ["clean", "killed", "of an earlier epoch", "twice"])
def test_w93_rebuilt_metadata_of_an_older_tier_does_not_bring_a_deleted_topic_back(
    shared: SharedTier, stop: str
) -> None:
    """Metadata rebuilt from an older tier does not bring a deleted topic back. The current tier is
    lost permanently, and the operator follows the procedure in the error. Only the state directory
    records the deletion."""
    broker = shared.root / "broker"
    open_store = make_opener("posix", shared)
    world = open_store()
    world.put("T", b"0")
    world.put("Gone", b"0", b"1")
    world.upload()
    shutil.copytree(broker / "tier", shared.root / "older")
    if stop == "of an earlier epoch":
        world.reopen()
    world.store.delete_topics({"Gone"})
    world.put("T", *[b"t" * 500] * 100)
    world.upload()
    clean(world)
    forget_in_log(world)
    stop_as(world, broker / "store", stop)
    replace_folder(broker / "tier", shared.root / "older")
    refuse_starts(open_store, 1, "rebuild metadata --force")
    report = jobs.rebuild_metadata(f"file://{broker / 'tier'}", broker / "store", force=True)
    assert report["messages"] == 1
    world = Stopped(broker, shared.clock, **SMALL, tieredStoreAdopt=True)
    for _ in range(2):
        assert world.read("Gone") == []
        assert world.store.flat_files.metadata.topic("Gone") is None
        world.store.expiry.run_once()
        assert world.tier_files("Gone") == []
        world.close()
        world = open_store()
    assert world.put("Gone", b"new") == [2]
    world.upload()
    assert world.read("Gone") == [(2, b"new")]
    world.close()


def forget_in_log(world: Stopped) -> None:
    """Let the local log expire, including its records of deletions. No message outside the deleted
    topics is lost."""
    for _ in range(2):
        world.put("Filling", *[b"f" * 500] * 40)
        world.store.delete_topics({"Filling"})
        world.clock.advance(200 * 3_600_000)
        world.local.execute_delete_files_manually()
        world.local.cleaning.run_once()
    assert "Gone" not in {key.topic for key in world.local.topic_deletions.find_all()}


def stop_as(world: Stopped, store: Path, stop: str) -> None:
    if stop == "killed":
        killed = world.root / "killed"
        shutil.copytree(store, killed, ignore=_NO_LOCKS)
        world.close()
        replace_folder(store, killed)
        return
    if stop == "twice":
        world.reopen()
    world.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_whole", [False, True])
def test_w78_a_copy_from_before_a_deletion_does_not_bring_the_topic_back(
    shared: SharedTier, kind: str, *, is_whole: bool
) -> None:
    """A copy from before a deletion does not bring the topic back. With `is_whole`, the copy also
    includes config/."""
    store = shared.root / "broker/store"
    open_store = make_opener(kind, shared)
    world = open_store()
    world.put("T", b"0")
    world.put("Gone", b"0", b"1")
    world.upload()
    older = shared.root / "older"
    shutil.copytree(store, older, ignore=_NO_LOCKS)
    world.store.delete_topics({"Gone"})
    world.close()
    newer = shared.root / "newer"
    shutil.copytree(store, newer, ignore=_NO_LOCKS)
    if not is_whole:
        replace_folder(older / "config", newer / "config")
    replace_folder(store, older)
    refuse_starts(open_store, 1, "topic Gone: the tier knows of its deletion")
    replace_folder(store, newer)
    for offset in (1, 2):
        world = open_store()
        assert world.read("Gone") == []
        assert world.put("T", b"new") == [offset]
        world.close()


@pytest.mark.parametrize("starts", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("held", [12, 0])
def test_w79_nothing_is_uploaded_behind_a_gap_that_an_older_tier_leaves(
    shared: SharedTier, kind: str, starts: int, held: int
) -> None:
    """The tier is replaced by an older copy, which lacks messages of a queue. No later message of
    the queue is uploaded before these, so that no message is lost. The copy is from the same epoch,
    so its marks match. The local store has all messages. `held` is the number of the queue's
    messages in the copy. `starts` is the number of starts after which messages are uploaded and the
    local store is cleaned."""
    bodies = [b"%d" % number + bytes(500) for number in range(45)]
    broker = shared.root / "broker"
    open_store = make_opener(kind, shared)
    world = open_store()
    world.put("K", b"kept")
    world.put("T", *bodies[:held])
    world.upload()
    objects = shared.copy_objects()
    if kind == "posix":
        shutil.copytree(broker / "tier", shared.root / "older")
    shared.take_over_epoch = world.epoch_number
    world.put("T", *bodies[held:])
    world.upload()
    world.close()
    if kind == "posix":
        replace_folder(broker / "tier", shared.root / "older")
    else:
        shared.put_objects(objects)
    for _ in range(starts - 1):
        world = open_store()
        shared.take_over_epoch = world.epoch_number
        world.close()
    world = open_store()
    world.local.flush()
    world.store.dispatcher.scan(force=True)
    world.put("Filling", *[b"f" * 3_000] * 20)
    world.local.flush()
    world.store.dispatcher.scan(force=True)
    world.clock.advance(26 * 3_600_000)
    world.local.cleaning._manual_rounds = 20
    world.local.cleaning.run_once()
    assert [body for _, body in world.read("T")] == bodies
    world.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("held", [25, 4])
def test_w79_an_older_tier_that_lacks_what_the_local_disk_has_deleted_is_refused(
    shared: SharedTier, kind: str, held: int
) -> None:
    """An older copy of the tier is refused if it lacks messages that the local store has deleted.
    The copy is from the same epoch, so its marks match. `held` is the number of the queue's
    messages in the copy."""
    bodies = [b"%d" % number + bytes(500) for number in range(100)]
    broker = shared.root / "broker"
    open_store = make_opener(kind, shared)
    world = open_store()
    world.put("T", *bodies[:held])
    world.upload()
    objects = shared.copy_objects()
    if kind == "posix":
        shutil.copytree(broker / "tier", shared.root / "older")
    world.put("T", *bodies[held:])
    world.upload()
    clean(world)
    world.close()
    newer = shared.objects
    if kind == "posix":
        shutil.copytree(broker / "tier", shared.root / "newer")
        replace_folder(broker / "tier", shared.root / "older")
    else:
        shared.take_over_epoch = 1
        shared.put_objects(objects)
    refuse_starts(open_store, 2, f"messages up to queue offset 100, .* up to {held}, .*begins at")
    if kind == "posix":
        replace_folder(broker / "tier", shared.root / "newer")
    else:
        shared.put_objects(newer)
    world = open_store()
    assert [body for _, body in world.read("T")] == bodies
    world.close()


@pytest.mark.parametrize("kind", KINDS)
def test_w33_older_metadata_that_lacks_a_part_of_the_index_finds_each_key(
    shared: SharedTier, kind: str
) -> None:
    """Every key is found with an older copy of config/ that lacks a part of the index. The copy is
    from the same epoch, and the tier has all segments of the queues."""
    store = shared.root / "broker/store"
    open_store = make_opener(kind, shared)
    world = open_store()
    for number in range(2):
        world.put("T", b"%d" % number)
        world.upload()
        world.store.index.seal_and_upload(force=True)
        if not number:
            world.put("T", *[b"x"] * 9)
            world.upload()
            shutil.copytree(store / "config", shared.root / "older")
    world.close()
    replace_folder(store / "config", shared.root / "older")
    for number in (11, 12):
        world = open_store()
        found = world.store.query_message("T", "all", 64, 0, 2**62)
        assert sorted(message.queue_offset for message in found) == [*range(number)]
        world.put("T", b"more")
        world.upload()
        world.store.index.seal_and_upload(force=True)
        world.close()
