"""Tests of encoding the metadata file in parts: content, duration, and how long other threads
wait."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from tieredstore.clock import ManualClock
from tieredstore.contracts.metadata_store import FileSegmentMetadata, TopicMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.metadata import kept_tables, parts
from tieredstore.metadata.json_format import Limits, parse
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.metadata.parts import CapturedPart, Row


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "tieredStoreMetadata.json"


def open_store(path: Path) -> DefaultMetadataStore:
    store = DefaultMetadataStore(path, "broker-a", ManualClock())
    store.load()
    return store


def segment(number: int, base: int = 0, size: int = 0) -> FileSegmentMetadata:
    kind = FileSegmentType(number % 2)
    return FileSegmentMetadata(f"broker-a/T{number}/0", kind, base, size=size)


def put_all(store: DefaultMetadataStore, numbers: range) -> None:
    with store.batch():
        for number in numbers:
            store.add_topic(f"T{number}")
            store.add_queue(f"T{number}", 0)
            store.put_segment(segment(number))


def change(store: DefaultMetadataStore, random_: random.Random) -> None:
    """Make one random change, to an existing entry or to a new one."""
    topic, base = f"T{random_.randrange(20)}", random_.randrange(3)
    kind = random_.choice(list(FileSegmentType))
    entry = FileSegmentMetadata(f"broker-a/{topic}/0", kind, base, size=random_.randrange(9))
    changes: list[Callable[[], object]] = [
        lambda: store.add_topic(topic),
        lambda: store.update_topic(replace(store.add_topic(topic), reserve_time_hours=base)),
        lambda: store.set_reserve_time(store.add_topic(topic), base),
        lambda: store.delete_topic(topic),
        lambda: store.add_queue(topic, base),
        lambda: store.update_queue(replace(store.add_queue(topic, base), max_offset=base)),
        lambda: store.delete_queue(topic, base),
        lambda: store.put_segment(entry),
        lambda: store.put_segment(entry),
        lambda: store.delete_segment(entry.id),
    ]
    random_.choice(changes)()


def contents(store: DefaultMetadataStore) -> dict[str, Any]:
    topics = store.topics()
    return {
        "topics": topics,
        "queues": [queue for number in range(20) for queue in store.queues(f"T{number}")],
        "segments": list(store.segments()),
    }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [1, 3, 256])
def test_whatever_changes_the_file_is_what_the_store_says(
    path: Path, seed: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_NAMES", size)
    random_ = random.Random(seed)
    store = open_store(path)
    store.add_topic("T0")
    for _ in range(60):
        change(store, random_)
        if random_.random() < 0.3:
            store.flush()
            data = path.read_bytes()
            again = parse(data, "file", Limits())
            assert orjson.loads(again.encode()) == orjson.loads(data)
            other = DefaultMetadataStore(path, "broker-a", ManualClock(), read_only=True)
            other.load()
            assert contents(other) == contents(store)
    # Nothing that went leaves an empty part behind.
    tables = store._kept.tables
    every: list[Any] = [tables.topics, tables.queues, *tables.segments.values()]
    for table in every:
        assert all(part.names for part in table.parts)
        names = [name for part in table.parts for name in part.names]
        assert len(set(names)) == len(names) == len(table)
        assert all(table.get(name) is content for name, content in table.items())


def test_no_dict_grows_with_a_table() -> None:
    """No dict grows with the size of a table, because resizing it would block readers for
    milliseconds."""
    table: parts.Table[Row[TopicMetadata]] = parts.Table()
    for number in range(20_000):
        table.add(f"topic-{number}", Row(TopicMetadata(number, f"topic-{number}")))
    assert len(table) == 20_000
    dicts = [*table._buckets, *(part.names for part in table.parts)]
    assert max(map(len, dicts)) <= 500
    assert table["topic-19999"].value.topic_id == 19_999
    assert table.get("topic-20000") is None
    assert not table.remove("topic-20000")


def test_a_change_is_encoded_with_its_part_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_NAMES", 10)
    store = open_store(path)
    put_all(store, range(1_000))
    fields = parts._fields
    encoded: list[object] = []

    def counted(value: Any, extra: Any) -> dict[str, object]:
        encoded.append(value)
        return fields(value, extra)

    monkeypatch.setattr(parts, "_fields", counted)
    store.put_segment(segment(500, base=7))
    assert 2 <= len(encoded) <= 11
    encoded.clear()
    store.delete_topic("T3")
    assert len(encoded) <= 2 * 10
    encoded.clear()
    store.delete_segment(SegmentId("broker-a/T500/0", FileSegmentType.COMMIT_LOG, 7))
    assert len(encoded) <= 10
    assert len(list(open_store(path).segments())) == 1_000


def test_nothing_is_encoded_under_the_lock_and_little_is_captured_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are never encoded under the lock, which is held for only a few entries at a time."""
    monkeypatch.setattr(parts, "PART_NAMES", 10)
    store = open_store(path)
    captured: list[int] = []
    holds: list[int] = []
    lock = store._kept.lock

    class Watched:
        def __enter__(self) -> None:
            lock.acquire()
            captured.clear()

        def __exit__(self, *_: object) -> None:
            holds.append(sum(captured))
            lock.release()

    class Watching(CapturedPart):
        def __init__(self, part: parts.Part[Any]) -> None:
            super().__init__(part)
            captured.append(0 if part.encoded is not None else len(part.names))

        def encode(self) -> bytes:
            assert not lock._is_owned()  # type: ignore[attr-defined]
            return super().encode()

    monkeypatch.setattr(kept_tables, "CapturedPart", Watching)
    monkeypatch.setattr(parts, "CapturedPart", Watching)
    with store.batch():
        put_all(store, range(1_000))
        monkeypatch.setattr(store._kept, "lock", Watched())
    most = kept_tables._PARTS_AT_ONCE * 10
    assert sum(holds) >= 3_000
    assert max(holds) <= most
    holds.clear()
    store.put_segment(segment(7, base=3))
    assert 0 < max(holds) <= most


def test_reading_all_segments_and_topics_lets_others_have_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_NAMES", 10)
    store = open_store(path)
    put_all(store, range(100))
    holds: list[None] = []
    lock = store._kept.lock

    class Counted:
        def __enter__(self) -> None:
            lock.acquire()
            holds.append(None)

        def __exit__(self, *_: object) -> None:
            lock.release()

    monkeypatch.setattr(store._kept, "lock", Counted())
    assert [entry.path for entry in store.segments(type=FileSegmentType.COMMIT_LOG)] == [
        f"broker-a/T{number}/0" for number in range(0, 100, 2)
    ]
    assert len(holds) >= 5
    holds.clear()
    assert [topic.topic for topic in store.topics()] == [f"T{number}" for number in range(100)]
    assert len(holds) >= 10


def test_a_change_during_the_encoding_is_in_the_next_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(path)
    put_all(store, range(3))
    encode = CapturedPart.encode
    during = [lambda: store.put_segment(segment(1, size=5))]

    def changing(self: CapturedPart) -> bytes:
        if during:
            during.pop()()
        return encode(self)

    monkeypatch.setattr(CapturedPart, "encode", changing)
    store.put_segment(segment(2, base=9))
    found = open_store(path).segment(segment(1).id)
    assert found is not None
    assert found.size == 5
    store.flush()
    other = parse(path.read_bytes(), "file", Limits())
    row = other.segment(segment(1).id)
    assert row is not None
    assert row.value.size == 5
