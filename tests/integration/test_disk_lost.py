"""The local disk is lost, and the tier is intact (L16 of `docs/faults.md`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.tiered_local import TieredLocal
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.errors import Corrupt, Exhausted, Invalid
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.read_only import open_read_only
from tieredstore.message.encoding import Message
from tieredstore.tier.flat.message_file import FlatMessageFile

FOREVER = (0, 2**63 - 1)
OLD = [b"old %d" % number for number in range(6)]
NEW = [b"new %d" % number for number in range(3)]
FILE_SIZE = 1 << 16


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TieredLocal]:
    """A tier with six messages of queue A/0 and two of queue B/1. Its broker has lost the local
    disk."""
    world = TieredLocal(tmp_path)
    world.put("A", *OLD, key="old")
    world.put("B", b"b0", b"b1", queue_id=1)
    world.upload()
    world.lose_disk()
    yield world
    world.close()


def test_l16_a_new_local_store_above_a_tier_with_messages_is_refused(world: TieredLocal) -> None:
    for _ in range(2):
        with pytest.raises(Invalid, match="tieredStoreAdopt=true") as caught:
            world.open()
        assert "broker-a" in str(caught.value)
        assert f"last written by process {os.getpid()} on" in str(caught.value)
    assert list((world.root / "store").rglob("commitlog/*")) == []
    world.open(tieredStoreAdopt=True)


@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
def test_l16_the_offset_of_a_last_message_with_a_damaged_head_is_not_used_again(
    tmp_path: Path, is_lost: bool, has_checksums: bool
) -> None:
    """The writer was killed while it wrote the last message, so the head of this message is
    damaged. The message's offset is not reused."""
    world = TieredLocal(tmp_path)
    world.put("A", *OLD)
    world.upload()
    world.lose_disk() if is_lost else world.close()
    (tmp_path / "store/tieredstore.ends.json").unlink(missing_ok=True)
    [log] = [path for path in world.tier_files("A") if path.parent.name == "COMMIT_LOG"]
    data = bytearray(log.read_bytes())
    data[len(data) // len(OLD) * (len(OLD) - 1) + 5] ^= 1  # of its magic
    log.write_bytes(data)
    if not has_checksums:
        for path in log.parent.glob(".*"):
            path.unlink()
    world.open(tieredStoreAdopt=is_lost)
    try:
        assert world.put("A", *NEW) == [6, 7, 8]
        world.upload()
        kept = [] if has_checksums else OLD[:-1]  # the block is damaged as a whole
        assert [body for _, body in world.read("A")] == [*(kept if is_lost else OLD), *NEW]
    finally:
        world.close()


@pytest.mark.parametrize("level", ["NOT_IN_DISK", "NOT_IN_MEM", "FORCE"])
@pytest.mark.parametrize("has_expired", [False, True])
def test_l16_a_consumer_of_all_waits_where_the_tier_ends(
    world: TieredLocal, level: str, has_expired: bool
) -> None:
    """A consumer that has read all messages waits at the end of the tier. The local disk was lost,
    so the new local store does not have the queue, but the consumer is not sent back to offset
    0."""
    world.open(tieredStoreAdopt=True, tieredStorageLevel=level)
    if has_expired:
        file = world.store.flat_files.get("A", 0)
        assert file is not None
        file.expire(world.clock.now_ms() + 1)
    first = 6 if has_expired else 0
    assert world.store.get_min_offset_in_queue("A", 0) == first
    assert world.store.get_max_offset_in_queue("A", 0) == 6
    for offset, status in (
        (6, GetMessageStatus.OFFSET_OVERFLOW_ONE),
        (7, GetMessageStatus.OFFSET_OVERFLOW_BADLY),
    ):
        result = world.store.get_message("g", "A", 0, offset, 32)
        assert (result.status, result.next_begin_offset) == (status, 6)
        assert (result.min_offset, result.max_offset) == (first, 6)
    assert world.put("A", b"new") == [6]
    assert [bytes(m.body) for m in world.store.get_message("g", "A", 0, 6, 32).messages] == [b"new"]


@pytest.mark.parametrize("key", [{"brokerRole": "SLAVE"}, {"tieredStorageLevel": "DISABLE"}])
def test_l16_a_store_that_does_not_write_the_tier_is_none_of_its_business(
    world: TieredLocal, key: dict[str, object]
) -> None:
    world.open(**key)
    world.close()


def test_l16_offsets_go_on_behind_a_tier_that_is_switched_off(world: TieredLocal) -> None:
    world.open(tieredStoreAdopt=True)
    world.close()
    world.open(tieredStorageLevel="DISABLE")
    assert world.local.put_message(Message("A", b"new")).queue_offset == 6
    assert world.local.put_message(Message("C", b"c0")).queue_offset == 0
    world.reopen()
    world.upload()
    assert world.read("A") == list(enumerate([*OLD, b"new"]))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_l16_a_tier_that_is_switched_off_and_whose_metadata_is_lost_is_refused(
    world: TieredLocal, is_damaged: bool
) -> None:
    """A start with a disabled tier and lost metadata is refused. Otherwise new messages would get
    offsets that the tier has already used, and could never be uploaded."""
    world.open(tieredStoreAdopt=True)
    world.close()
    config = world.root / "store" / "config"
    kept = {path: path.read_bytes() for path in config.glob("tieredStoreMetadata.json*")}
    for path in kept:
        if is_damaged:
            path.write_bytes(b"{")
        else:
            path.unlink()
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"(?i)rebuild") as caught:
            world.open(tieredStorageLevel="DISABLE")
        assert f"{config}/tieredStoreMetadata.json*" in str(caught.value)
    for path, content in kept.items():
        path.write_bytes(content)
    world.open(tieredStorageLevel="DISABLE")
    assert world.local.put_message(Message("A", b"new")).queue_offset == 6
    world.close()
    for path in (*kept, world.root / "store" / "tieredstore.ends.json"):  # as the error says
        path.unlink()
    world.open(tieredStorageLevel="DISABLE")
    assert world.local.put_message(Message("B", b"new", queue_id=1)).queue_offset == 0


@pytest.mark.parametrize("level", ["NOT_IN_DISK", "FORCE"])
def test_l16_offsets_go_on_behind_the_tier_and_nothing_mixes(
    world: TieredLocal, level: str
) -> None:
    world.open(tieredStoreAdopt=True, tieredStorageLevel=level)
    assert world.store.get_max_offset_in_queue("A", 0) == 6
    assert world.read("A") == list(enumerate(OLD))
    assert world.put("A", *NEW, key="new") == [6, 7, 8]
    world.upload()
    whole = list(enumerate([*OLD, *NEW]))
    for _ in range(2):
        assert world.read("A") == whole
        assert world.store.get_min_offset_in_queue("A", 0) == 0
        assert world.store.get_max_offset_in_queue("A", 0) == 9
        assert world.local.get_min_offset_in_queue("A", 0) == 6
        assert world.read("A", store=world.local) == whole[6:]
        assert len(world.store.query_message("A", "old", 99, *FOREVER)) == 6
        assert len(world.store.query_message("A", "new", 99, *FOREVER)) == 3
        world.reopen(tieredStorageLevel=level)  # told once is enough
    assert world.put("B", b"b2", queue_id=1) == [2]
    assert world.put("C", b"c0") == [0]
    world.upload()
    assert world.read("B", 1) == [(0, b"b0"), (1, b"b1"), (2, b"b2")]
    world.close()
    reader = open_read_only(world.root / "store")
    assert world.read("A", store=reader) == whole[6:]
    assert reader.get_min_offset_in_queue("B", 1) == 2
    reader.shutdown()


def test_l16_the_log_begins_at_a_file_where_no_log_has_been(world: TieredLocal) -> None:
    begins = [0]
    for _ in range(3):
        world.open(tieredStoreAdopt=True)
        log = world.local.commit_log
        begins.append(log.min_offset)
        assert log.min_offset % FILE_SIZE == 0
        assert log.min_offset > begins[-2] + 100 * FILE_SIZE
        assert log.min_offset >= 1 << 31
        count = world.store.get_max_offset_in_queue("A", 0)
        assert world.put("A", b"more") == [count]
        message = world.local.get_message("g", "A", 0, count, 1).messages[0]
        assert message.physical_offset == log.min_offset
        world.upload()
        world.lose_disk()


@pytest.mark.parametrize("puts_before", [0, 4])
def test_l16_a_topic_of_before_the_loss_is_deleted_and_its_offsets_go_on(
    world: TieredLocal, puts_before: int
) -> None:
    world.open(tieredStoreAdopt=True)
    world.put("A", *[b"x"] * puts_before)
    assert world.store.delete_topics({"A"}) == 1
    world.reopen()
    assert world.read("A") == []
    assert world.put("A", b"again", key="again") == [6 + puts_before]
    world.upload()
    assert world.read("A") == [(6 + puts_before, b"again")]
    assert world.store.query_message("A", "old", 99, *FOREVER) == []


def fail(*_args: Any) -> Any:
    raise Exhausted("stopped here")


def after(call: Callable[..., Any]) -> Callable[..., Any]:
    def done_and_stopped(*args: Any) -> Any:
        call(*args)
        fail()

    return done_and_stopped


@pytest.mark.parametrize("step", ["create", "sync", "sync_folder"])
@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("is_told_again", [False, True])
def test_l16_adopting_may_be_stopped_at_any_step(
    world: TieredLocal,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    is_done: bool,
    is_told_again: bool,
) -> None:
    with monkeypatch.context() as patched:
        real = getattr(PositionalFiles, step)
        patched.setattr(PositionalFiles, step, after(real) if is_done else fail)
        with pytest.raises(Exhausted, match="stopped here"):
            world.open(tieredStoreAdopt=True)
    if (step, is_done) == ("create", False) and not is_told_again:
        with pytest.raises(Invalid, match="tieredStoreAdopt"):
            world.open()
        world.open(tieredStoreAdopt=True)
    else:
        world.open(tieredStoreAdopt=is_told_again)
    assert world.local.commit_log.min_offset >= 1 << 31
    assert world.put("A", *NEW) == [6, 7, 8]
    world.upload()
    assert world.read("A") == list(enumerate([*OLD, *NEW]))


def test_l16_a_crash_after_adopting_is_recovered_behind_the_tier(world: TieredLocal) -> None:
    world.open(tieredStoreAdopt=True)
    world.put("A", *NEW)
    store = world.root / "store"
    shutil.copytree(store, world.root / "killed", ignore=shutil.ignore_patterns("lock"))
    world.close()
    shutil.rmtree(store)
    shutil.move(world.root / "killed", store)
    assert (store / "abort").exists()
    world.open()
    assert world.put("A", b"later") == [9]
    assert world.put("B", b"b2", queue_id=1) == [2]
    world.upload()
    assert world.read("A") == list(enumerate([*OLD, *NEW, b"later"]))
    assert world.local.get_min_offset_in_queue("A", 0) == 6


def test_l16_a_queue_of_the_tier_that_cannot_be_opened_takes_no_messages(
    world: TieredLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover = FlatMessageFile.recover

    def fail_one(file: FlatMessageFile, *args: Any) -> None:
        if file.topic == "A":
            raise Corrupt("damaged")
        recover(file, *args)

    monkeypatch.setattr(FlatMessageFile, "recover", fail_one)
    world.open(tieredStoreAdopt=True)
    assert [*world.store.flat_files.broken_queues] == [QueueKey("A", 0)]
    result = world.store.put_message(Message.create("A", b"x"))
    assert not result.ok
    assert "damaged" in result.reason
    assert world.local.get_max_offset_in_queue("A", 0) == 0
    assert world.put("B", b"b2", queue_id=1) == [2]
