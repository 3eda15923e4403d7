"""`keys=` finds messages with and without an index file."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.kit.command_line import tieredstore as command
from tests.kit.index_chains import put_item
from tests.kit.tier_builder import (
    BROKER,
    START_MS,
    TierBuilder,
    flip,
    message,
    small_tier,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.hashes import tiered_key_hash
from tieredstore.message.index.tiered import IndexHeader, compact, pack_header, unsealed_size
from tieredstore.scan.findings import Finding
from tieredstore.scan.keys import plan as keys_plan
from tieredstore.scan.tasks import ScanTask
from tieredstore.scan.time_search import search as time_search
from tieredstore.table import Tier
from tieredstore.tier.index import uploaded_file

HOUR_MS = 3_600_000
Row = tuple[str, int, int]


@pytest.fixture(autouse=True)
def _ask_the_index_of_small_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_plan, "SMALL_QUEUE_BYTES", 0)
    monkeypatch.setattr(keys_plan, "_GAP_BYTES", 0)


class IndexedTier:
    """A tier in which tests choose the indexed messages."""

    def __init__(self, root: Path, times: Iterable[int] | None = None) -> None:
        self.builder = TierBuilder(root)
        self.built = self.builder.built
        if times is not None:
            self.builder._times = iter(times)
        self._index_end = 0

    def index(self, *runs: tuple[str, int, int, int]) -> Path:
        """Create an index file with the keys of some messages. `runs` are ranges of messages:
        topic, queue id, first offset and end offset."""
        chosen = [
            (topic, queue_id, item)
            for topic, queue_id, start, end in runs
            for item in self.built.stored[topic, queue_id]
            if start <= item.queue_offset < end
        ]
        slots, most = 4, 4 * len(chosen) + 8
        buffer = bytearray(unsealed_size(slots, most))
        begin = min(item.store_timestamp_ms for _, _, item in chosen)
        buffer[:28] = pack_header(IndexHeader(begin))
        for topic, queue_id, item in chosen:
            entry = self.built.metadata.topic(topic)
            assert entry is not None
            for key in (item.message.uniq_key, *item.message.keys):
                put_item(
                    buffer, slots, tiered_key_hash(topic, key or ""), entry.topic_id, queue_id,
                    item.offset, len(item.record), item.store_timestamp_ms,
                )  # fmt: skip
        data = b"".join(compact(buffer, slots))
        segment = SegmentId(f"{BROKER}/rmq_sys_INDEX/0", FileSegmentType.INDEX, self._index_end)
        self._index_end += len(data)
        self.builder._segment(segment, data, [begin])
        return self.built.path(segment)

    @property
    def tier(self) -> Tier:
        return tieredstore.open(self.built.url)

    def find(self, *keys: str, **chosen: Any) -> list[Row]:
        """Return the messages with these keys. Asserts that scans with and without the index find
        the same messages."""
        found, expected = (
            sorted(
                (row["topic"], row["queue_id"], row["queue_offset"])
                for row in self.tier.scan(
                    keys=keys,
                    columns=["topic", "queue_id", "queue_offset"],
                    use_index=use_index,
                    **chosen,
                )
                .to_arrow()
                .to_pylist()
            )
            for use_index in (True, False)
        )
        assert found == expected
        return found

    def plan(self, *keys: str) -> list[ScanTask]:
        return self.tier.scan(keys=keys).plan()


def messages(topic: str, queue_id: int, count: int) -> list[Any]:
    return [message(topic, queue_id, number) for number in range(count)]


def test_messages_that_the_index_names_are_read_alone(tmp_path: Path) -> None:
    built = small_tier(tmp_path)
    tier = tieredstore.open(built.url)
    last = built.stored["over6", 0][-1]
    scan = tier.scan(keys=["orders-0-3", *last.message.keys], columns=["keys"])
    assert [task.range.count for task in scan.plan()] == [1, 1]
    assert scan.to_arrow()["keys"].to_pylist() == [["orders-0-3"], last.message.keys]
    assert tier.scan("orders", keys="nobody").plan() == []
    assert tier.scan("orders", keys="orders-0-3", from_offset=104).plan() == []
    at = built.stored["orders", 0][3].store_timestamp_ms
    for since, count in ((at, 1), (at + 1, 0)):
        assert tier.scan("orders", keys="orders-0-3", since=since).to_arrow().num_rows == count
        found = tier.scan("orders", keys="orders-0-3", until=since).to_arrow()
        assert found.num_rows == 1 - count


def test_messages_from_before_the_index_are_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages from before the index was enabled are found, and their number is logged."""
    world = IndexedTier(
        tmp_path,
        [START_MS + n for n in range(10)] + [START_MS + 10 * HOUR_MS + n for n in range(10)],
    )
    world.builder.queue("orders", 0, messages("orders", 0, 10))
    world.builder.queue("orders", 1, messages("orders", 1, 10))
    world.index(("orders", 0, 7, 10), ("orders", 1, 0, 10))
    for number in range(10):
        for queue_id in (0, 1):
            key = f"orders-{queue_id}-{number}"
            assert world.find(key) == [("orders", queue_id, number)]
    assert [task.range.count for task in world.plan("orders-1-4")] == [7, 1]
    assert "no index file names 7 messages of 1 queues (broker-a/orders/0" in caplog.text


def test_messages_behind_the_newest_index_file_are_found_though_a_clock_was_set_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    times = [START_MS + 10 * HOUR_MS + n for n in range(8)] + [START_MS + n for n in range(8)]
    world = IndexedTier(tmp_path, times)
    world.builder.queue("orders", 0, messages("orders", 0, 16))
    world.index(("orders", 0, 0, 9))
    for number in (0, 3, 8, 9, 12, 15):
        assert world.find(f"orders-0-{number}") == [("orders", 0, number)]
    assert "not complete" not in caplog.text  # an index is always behind


@pytest.mark.parametrize("indexed", [(5, 9), (0, 1), (19, 20), (10, 11)])
def test_an_index_of_some_messages_between_others(tmp_path: Path, indexed: tuple[int, int]) -> None:
    world = IndexedTier(tmp_path)
    world.builder.queue("orders", 0, messages("orders", 0, 20))
    world.index(("orders", 0, *indexed))
    for number in range(20):
        assert world.find(f"orders-0-{number}") == [("orders", 0, number)]


def test_a_queue_that_no_index_file_names_is_looked_at_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = IndexedTier(tmp_path)
    world.builder.queue("orders", 0, messages("orders", 0, 4))
    assert world.find("orders-0-2") == [("orders", 0, 2)]
    assert "broker broker-a has no index files" in caplog.text
    world.builder.queue("orders", 1, messages("orders", 1, 4))
    world.index(("orders", 0, 0, 4))
    assert world.find("orders-1-2") == [("orders", 1, 2)]
    assert "no index file names 4 messages of 1 queues (broker-a/orders/1" in caplog.text


def test_messages_of_hours_without_an_index_file_are_found(tmp_path: Path) -> None:
    """Messages that were stored while the index was disabled are found."""
    world = IndexedTier(tmp_path, itertools.count(START_MS, HOUR_MS // 2))
    world.builder.queue("orders", 0, messages("orders", 0, 30))
    world.index(("orders", 0, 0, 10))
    world.index(("orders", 0, 20, 30))
    for number in range(30):
        assert world.find(f"orders-0-{number}") == [("orders", 0, number)]


def test_j83_messages_of_hours_without_an_index_file_are_found_where_no_sample_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(time_search, "READ_WHOLE_BYTES", 0)
    monkeypatch.setattr(time_search, "TOLD_BYTES", 1)
    times = [START_MS + n * 1000 + (10 * HOUR_MS if n >= 400 else 0) for n in range(600)]
    odd = 203  # no multiple of the distance of samples
    times[odd] += 5 * HOUR_MS
    world = IndexedTier(tmp_path, times)
    world.builder.queue("orders", 0, messages("orders", 0, 600))
    world.index(("orders", 0, 0, odd), ("orders", 0, odd + 1, 400))
    world.index(("orders", 0, 400, 600))
    key = f"orders-0-{odd}"
    assert world.tier.scan(keys=key).to_arrow().num_rows == 1
    told = [one for one in caplog.messages if "no times are recorded of 600 messages" in one]
    assert len(told) == 1
    caplog.clear()
    assert world.tier.scan(keys=key, search_times="sampled").to_arrow().num_rows == 0
    assert "no times are recorded" not in caplog.text
    since = START_MS + HOUR_MS
    for since_ms, until_ms, rows in ((None, None, 1), (since, None, 1), (None, since, 0)):
        found = world.tier.scan(keys=key, use_index=False, since=since_ms, until=until_ms)
        assert found.to_arrow().num_rows == rows


def test_messages_of_an_index_file_that_is_gone_are_found(tmp_path: Path) -> None:
    world = IndexedTier(tmp_path)
    world.builder.queue("orders", 0, messages("orders", 0, 30))
    world.index(("orders", 0, 0, 10))
    lost = world.index(("orders", 0, 10, 20))
    world.index(("orders", 0, 20, 30))
    lost.unlink()
    for number in range(30):
        assert world.find(f"orders-0-{number}") == [("orders", 0, number)]


@pytest.mark.parametrize("lost", [(1,), (2,), (1, 2), (1, 3)])
def test_j45_messages_of_a_lost_index_file_are_found_though_other_files_cover_its_times(
    tmp_path: Path, lost: tuple[int, ...]
) -> None:
    """Messages of a lost index file are found, even if another file covers the same times."""
    world = IndexedTier(tmp_path)
    world.builder.queue("orders", 0, messages("orders", 0, 50))
    world.builder.queue("newer", 0, messages("newer", 0, 4))
    files = [
        world.index(("orders", 0, 10 * part, 10 * part + 10), *extra)
        for part, extra in enumerate([[("newer", 0, 0, 4)], [], [], [], []])
    ]
    for number in lost:
        files[number].unlink()
    for number in range(50):
        key = f"orders-0-{number}"
        assert world.find(key) == [("orders", 0, number)]
        ran = command("query", "--tier", world.built.url, "--topic", "orders", "--key", key)
        assert ran.code == 0, ran.err
    assert [world.find(f"newer-0-{number}") for number in range(4)] == [
        [("newer", 0, number)] for number in range(4)
    ]


def test_an_index_that_is_damaged_is_said_and_all_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = IndexedTier(tmp_path)
    world.builder.queue("orders", 0, messages("orders", 0, 8))
    path = world.index(("orders", 0, 0, 8))
    whole = path.read_bytes()
    for damaged in (b"", bytes(40), whole[:-1], whole[:28] + b"\xff" * 32 + whole[60:]):
        path.write_bytes(damaged)
        caplog.clear()
        assert world.find("orders-0-3") == [("orders", 0, 3)]
        assert "index is damaged" in caplog.text


def test_a_hot_key_is_never_cut_and_its_messages_are_read_in_few_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploaded_file, "MAX_CHAIN_ITEMS", 4)
    world = IndexedTier(tmp_path)
    hot = [message("orders", 0, n, keys=["tenant"] if n % 4 else ["other"]) for n in range(40)]
    world.builder.queue("orders", 0, hot)
    world.index(("orders", 0, 0, 40))
    expected = [("orders", 0, n) for n in range(40) if n % 4]
    assert world.find("tenant") == expected
    assert len(world.plan("tenant")) == 10
    monkeypatch.setattr(keys_plan, "_MOST_RANGES", 3)
    assert len(world.plan("tenant")) <= 3
    assert world.find("tenant") == expected
    monkeypatch.setattr(keys_plan, "_GAP_BYTES", 1 << 20)
    assert len(world.plan("tenant")) == 1
    assert world.find("tenant", "other") == [("orders", 0, n) for n in range(40)]


def test_damage_of_a_message_that_the_index_names_is_told(tmp_path: Path) -> None:
    world = IndexedTier(tmp_path)
    stored = world.builder.queue("orders", 0, messages("orders", 0, 20))
    world.index(("orders", 0, 0, 20))
    log = world.built.path(
        SegmentId(f"{BROKER}/orders/0", FileSegmentType.COMMIT_LOG, stored[10].offset)
    )
    flip(log, stored[12].offset - stored[10].offset + 5)  # its magic
    assert world.tier.scan(keys="orders-0-11").to_arrow().num_rows == 1
    with pytest.raises(Corrupt, match="queue offset 12"):
        world.tier.scan(keys="orders-0-12").to_arrow()
    log.unlink()
    with pytest.raises(Corrupt, match="queue offset 11"):
        world.tier.scan(keys="orders-0-11").to_arrow()


def test_items_of_messages_that_expired_or_are_others_now_name_nothing(tmp_path: Path) -> None:
    world = IndexedTier(tmp_path)
    world.builder.queue("orders", 0, messages("orders", 0, 20))
    world.index(("orders", 0, 0, 20))
    for kind in (FileSegmentType.CONSUME_QUEUE, FileSegmentType.COMMIT_LOG):
        world.built.path(SegmentId(f"{BROKER}/orders/0", kind, 0)).unlink()
    assert world.find("orders-0-2") == []
    assert world.find("orders-0-5", "orders-0-19") == [("orders", 0, 5), ("orders", 0, 19)]


def test_messages_without_keys_do_not_make_an_index_incomplete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world = IndexedTier(tmp_path)
    some = [
        message("orders", 0, n, **({} if 2 < n < 8 else {"keys": [], "uniq_key": None}))
        for n in range(12)
    ]
    world.builder.queue("orders", 0, some)
    world.index(("orders", 0, 3, 8))
    assert world.find("orders-0-4") == [("orders", 0, 4)]
    assert [task.range.count for task in world.plan("orders-0-4")] == [1]
    assert not caplog.text


def test_keys_that_java_leaves_out_of_its_index_are_looked_for_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search reads all messages for keys that Java does not index: blank keys, and keys whose
    hash has no slot."""
    world = IndexedTier(tmp_path)
    world.builder.queue("orders", 0, messages("orders", 0, 8))
    world.index(("orders", 0, 0, 8))
    assert world.plan("nobody") == []
    assert [task.range.count for task in world.plan(" ")] == [8]
    from tieredstore.scan.keys import index_files

    monkeypatch.setattr(index_files, "_NO_JAVA_HASH", tiered_java_hash("orders", "nobody"))
    assert [task.range.count for task in world.plan("nobody")] == [8]


def tiered_java_hash(topic: str, key: str) -> int:
    from tieredstore.message.hashes import java_string_hash

    return java_string_hash(f"{topic}#{key}")


def test_with_a_state_an_index_file_that_is_missing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = IndexedTier(tmp_path)
    world.builder.queue("orders", 0, messages("orders", 0, 8))
    path = world.index(("orders", 0, 0, 8))
    world.built.metadata.flush()
    path.unlink()
    tier = tieredstore.open(world.built.url, state=world.built.state)
    assert tier.scan(keys="orders-0-3").to_arrow().num_rows == 1
    assert "index is damaged" in caplog.text


@pytest.mark.parametrize("indexed", [(0, 20), (7, 13)])
@pytest.mark.parametrize("with_state", [False, True])
def test_units_that_are_lost_may_have_had_any_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, indexed: tuple[int, int], with_state: bool
) -> None:
    world = IndexedTier(tmp_path)
    world.builder.queue("orders", 0, messages("orders", 0, 20))
    world.index(("orders", 0, *indexed))
    world.built.metadata.flush()
    lost = SegmentId(f"{BROKER}/orders/0", FileSegmentType.CONSUME_QUEUE, 5 * UNIT_SIZE)
    world.built.path(lost).unlink()
    state = world.built.state if with_state else None
    tier = tieredstore.open(world.built.url, state=state)
    for number in (2, 7, 12, 19):
        key = f"orders-0-{number}"
        with pytest.raises(Corrupt, match="messages 5 to 9") as raised:
            tier.scan(keys=key).to_arrow()
        assert str(lost) in str(raised.value)
        found: list[Finding] = []
        rows = tier.scan(keys=key, columns="queue_offset", on_finding=found.append).to_arrow()
        assert rows["queue_offset"].to_pylist() == [n for n in (2, 12, 19) if n == number]
        assert [(f.kind, f.segment, f.queue_offset, f.messages) for f in found] == [
            ("units-missing", lost, 5, 5)
        ]
        assert tier.scan(keys=key, from_offset=10).to_arrow().num_rows == (number > 9)
    if indexed == (0, 20):
        assert "not complete" not in caplog.text  # the index has all that can be read
