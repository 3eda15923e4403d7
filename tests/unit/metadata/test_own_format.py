"""The fast parser of our own metadata files gives the same result as the general parser."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tieredstore.clock import ManualClock
from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Corrupt
from tieredstore.metadata import snapshot_files
from tieredstore.metadata.json_format import Limits, parse
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.metadata.parts import Tables
from tieredstore.metadata.snapshot_files import parse_own

MOST = 1_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "tieredStoreMetadata.json"


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that receives the parser's name for each file read."""
    ways: list[str] = []

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            ways.append(name)
            return function(*arguments)

        return noted

    monkeypatch.setattr(snapshot_files, "parse", noting("any", parse))
    monkeypatch.setattr(snapshot_files, "parse_own", noting("own", parse_own))
    return ways


def open_store(path: Path, **options: Any) -> DefaultMetadataStore:
    store = DefaultMetadataStore(path, "broker-ä", ManualClock(), **options)
    store.load()
    return store


def fill(path: Path) -> DefaultMetadataStore:
    """Return a store with every kind of entry, and numbers from smallest to largest."""
    store = open_store(path)
    for number, topic in enumerate(["T", "a b", "{,}:[]", "ünïcodé", "%RETRY%g"]):
        store.add_topic(topic, number - 1)
        store.add_queue(topic, 2**31 - 1)
        for kind in FileSegmentType:
            for base in (0, 20 * number + 1, 2**63 - 1):
                store.put_segment(
                    FileSegmentMetadata(f"b/{topic}/{number}", kind, base, number, base, 1, -1)
                )
    store.delete_queue("T", 2**31 - 1)
    return store


def contents(store: DefaultMetadataStore) -> list[Any]:
    topics = store.topics()
    return [topics, [store.queues(t.topic) for t in topics], list(store.segments())]


def test_what_was_written_here_is_read_as_it_was(path: Path, ways: list[str]) -> None:
    store = fill(path)
    ways.clear()
    again = open_store(path)
    assert ways == ["own"]
    assert contents(again) == contents(store)
    assert again.add_topic("next").topic_id == store.add_topic("next").topic_id


def test_both_ways_lead_to_the_same_tables(path: Path) -> None:
    fill(path)
    data = path.read_bytes()
    own, other = parse_own(data, MOST), parse(data, "file", Limits())
    assert own is not None
    assert own.encode() == other.encode() == data
    assert own.segment_count == other.segment_count == 45


def test_an_empty_store_is_read_too(path: Path) -> None:
    tables = parse_own(Tables().encode(), MOST)
    assert tables is not None
    assert tables.encode() == Tables().encode()


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = orjson.loads(path.read_bytes())
    change(document)
    path.write_bytes(orjson.dumps(document))


def test_what_others_wrote_is_looked_at_closely(path: Path, ways: list[str]) -> None:
    fill(path).close()
    rewrite(path, lambda document: document["topicMetadataTable"]["T"].update(topicId=9))
    ways.clear()
    assert open_store(path).add_topic("next").topic_id == 10
    assert ways == ["any"]
    path.write_bytes(path.read_bytes().replace(b'"topicId":9', b'"topicId":9,"topicId":8'))
    path.with_name(path.name + ".bak").unlink()
    with pytest.raises(Corrupt, match="twice"):
        open_store(path)


def test_fields_of_later_versions_stay_where_they_are(path: Path, ways: list[str]) -> None:
    fill(path).close()
    rewrite(path, lambda document: document["queueMetadataTable"]["a b"].setdefault("7", {
        "queue": {"brokerName": "b", "queueId": 7, "topic": "a b"}, "minOffset": 0,
        "maxOffset": 0, "updateTimestamp": 0, "colour": ["red", {"very": 1}],
    }))  # fmt: skip
    open_store(path).add_topic("makes it ours")
    ways.clear()
    store = open_store(path)
    assert ways == ["own", "any"]
    store.add_topic("writes it once more")
    found = orjson.loads(path.read_bytes())["queueMetadataTable"]["a b"]["7"]
    assert found["colour"] == ["red", {"very": 1}]


def test_paths_with_backslashes_are_as_they_were_without(path: Path, ways: list[str]) -> None:
    kind = FileSegmentType.COMMIT_LOG
    open_store(path).put_segment(FileSegmentMetadata("b\\T\\0", kind, 0))
    ways.clear()
    assert [entry.path for entry in open_store(path).segments()] == ["b/T/0"]
    assert ways == ["own", "any"]


def test_more_segments_than_may_be_read_are_refused(path: Path) -> None:
    fill(path).close()
    assert parse_own(path.read_bytes(), 44) is None
    with pytest.raises(Corrupt, match="more than 44 segments"):
        open_store(path, limits=Limits(max_segments=44))


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collection_of_garbage_goes_on_as_before(path: Path, *, is_on: bool) -> None:
    fill(path)
    was_on = gc.isenabled()
    try:
        gc.enable() if is_on else gc.disable()
        assert parse_own(path.read_bytes(), MOST) is not None
        assert gc.isenabled() is is_on
        assert parse_own(b"{", MOST) is None
        assert gc.isenabled() is is_on
    finally:
        gc.enable() if was_on else gc.disable()
