"""Tests of deleting and resetting queues, including queues that cannot be opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import (
    BROKER,
    KEY,
    Tier,
    batch,
    bodies,
    commit_log_id,
    consume_queue_id,
    existing,
    fill,
    record,
)
from tests.kit.tier.writing import become_writer
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS, FileSegmentMetadata
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Busy, Invalid
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile

SIZE = len(record(0)[0])
SETTINGS: dict[str, object] = {
    "commit_log_max_size_bytes": 3 * SIZE,
    "consume_queue_max_size_bytes": 80,
}


def make_provider(kind: str, folder: Path) -> SegmentProvider:
    match kind:
        case "posix":
            (folder / "tier").mkdir()
            return PosixProvider(folder / "tier", "DefaultCluster", fsync=False)
        case "chunks":
            return chunk_provider()
        case _:
            return MemoryProvider()


@pytest.fixture(params=["posix", "memory", "chunks"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Tier:
    return Tier(provider=make_provider(request.param, tmp_path), settings=SETTINGS)


@pytest.fixture
def store(tier: Tier) -> Iterator[FlatFileStore]:
    """A store that owns the writer epoch. Queue 0 of TopicA has offsets 0 to 7 in several
    segments."""
    store = FlatFileStore(tier.store().config, tier.provider, tier.metadata, tier.clock)
    writer = become_writer(store)
    store.load()
    file = store.get_or_create(*KEY)
    file.init_offset(0)
    fill(file, 0, 8)
    yield store
    store.close()
    writer.release()


def reopened(store: FlatFileStore) -> FlatMessageFile:
    store.load()
    return existing(store)


def offsets(file: FlatMessageFile) -> list[int]:
    return [offset for offset, _ in bodies(file)]


def listed(tier: Tier) -> set[object]:
    return {item.id for item in tier.provider.list("") if item.size_bytes}


@pytest.mark.parametrize("offset", [0, 5, 8, 100])
def test_a_queue_begins_anew_at_any_offset(tier: Tier, store: FlatFileStore, offset: int) -> None:
    file = existing(store)
    log_end = file.commit_log_commit_offset
    gone = file.begin_anew(offset)
    assert len(gone) == 3 + 2
    assert listed(tier) == set()
    for again in file, reopened(store):
        assert again.consume_queue_min_offset == again.consume_queue_max_offset == offset
        assert again.commit_log_max_offset == log_end  # no place means another message
    again = existing(store)
    fill(again, offset, 5)
    assert offsets(reopened(store)) == list(range(offset, offset + 5))
    assert {entry.status for entry in tier.metadata.segments()} == {0}


def test_what_is_not_committed_is_not_taken_away(store: FlatFileStore) -> None:
    file = existing(store)
    file.append_batch(*batch(8, 2))
    with pytest.raises(Busy, match="not committed"):
        file.begin_anew(0)
    assert file.commit()
    assert offsets(file) == list(range(10))


def test_only_an_empty_file_begins_somewhere_else(store: FlatFileStore) -> None:
    file = existing(store)
    with pytest.raises(Invalid, match="of the stored bytes"):
        file.consume_queue.rebase(0)
    assert offsets(file) == list(range(8))


def test_what_expires_is_told_before(tier: Tier, store: FlatFileStore) -> None:
    file = existing(store)
    middle = file.consume_queue.segments[1].begin_ms
    for before_ms in 0, middle, NEVER_WRITTEN_MS:
        told = {
            segment.file.id
            for flat in (file.commit_log, file.consume_queue)
            for segment in flat.find_expired(before_ms)
        }
        before = listed(tier)
        assert set(file.expire(before_ms)) == told
        assert before - listed(tier) == told
    assert listed(tier) == set()
    assert file.commit_log.find_expired(NEVER_WRITTEN_MS) == []


def test_a_queue_that_cannot_be_opened_is_deleted_with_all_it_has(
    tier: Tier, store: FlatFileStore
) -> None:
    tier.metadata.put_segment(
        FileSegmentMetadata(consume_queue_id(7).path, consume_queue_id(7).type, 7, size=20)
    )
    store.load()
    assert list(store.broken_queues) == [KEY]
    store.destroy(*KEY)
    assert listed(tier) == set()
    assert list(tier.metadata.segments()) == []
    assert tier.metadata.queue(*KEY) is None
    assert store.broken_queues == {}
    file = store.get_or_create(*KEY)
    file.init_offset(3, 1000)
    fill(file, 3, 2)
    again = reopened(store)
    assert offsets(again) == [3, 4]
    assert again.commit_log_min_offset == 1000


@pytest.mark.parametrize("is_known", [True, False])
def test_segments_that_the_metadata_does_not_know_go_with_their_queue(
    tier: Tier, store: FlatFileStore, is_known: bool
) -> None:
    key = KEY if is_known else (KEY.topic, 7)
    stray = commit_log_id(10_000, f"{BROKER}/{key[0]}/{key[1]}")
    segment = tier.provider.open(stray)
    segment.write(0, [b"a stray"])
    segment.close()
    store.load()
    [(topic, queues)] = store.destroy_topics({KEY.topic})
    assert (topic.topic, queues) == (KEY.topic, sorted({0, key[1]}))
    assert listed(tier) == set()
    assert list(tier.metadata.segments()) == []
    file = store.get_or_create(*key)
    assert file.read_only_reason is None
    file.init_offset(0)


@pytest.mark.parametrize("offset", [None, 0, 3, 50])
@pytest.mark.parametrize("damage", ["broken", "stray", "nothing"])
def test_whatever_is_wrong_with_a_queue_it_begins_anew(
    tier: Tier, store: FlatFileStore, damage: str, offset: int | None
) -> None:
    log_end = existing(store).commit_log_commit_offset
    if damage == "broken":
        bad = consume_queue_id(7)
        tier.metadata.put_segment(FileSegmentMetadata(bad.path, bad.type, 7, size=20))
    elif damage == "stray":
        log_end += 5_000
        segment = tier.provider.open(commit_log_id(log_end - 7))
        segment.write(0, [b"a stray"])
        segment.close()
    store.load()
    store.begin_anew(*KEY, offset)
    assert listed(tier) == set()
    store.load()
    file = existing(store)
    begin = 8 if offset is None else offset
    assert file.consume_queue_min_offset == file.consume_queue_max_offset == begin
    assert file.commit_log_max_offset >= log_end
    assert file.read_only_reason is None
    fill(file, begin, 5)
    assert offsets(reopened(store)) == list(range(begin, begin + 5))
    assert len(list(tier.metadata.segments())) == len(listed(tier))


def test_a_queue_begins_anew_again_and_again(tier: Tier, store: FlatFileStore) -> None:
    for damaged in (True, False, True, True):
        if damaged:
            bad = consume_queue_id(7)
            tier.metadata.put_segment(FileSegmentMetadata(bad.path, bad.type, 7, size=20))
            store.load()
        assert store.begin_anew(*KEY).consume_queue_max_offset == 8
    assert [entry.base_offset // 20 for entry in tier.metadata.segments()][-1] == 8
