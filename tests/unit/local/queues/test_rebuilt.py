"""Consume queues rebuilt from the commit log equal the owner's."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import (
    START_MS,
    copy_store,
    plain,
    put_all,
    running,
    small_config,
)
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.log.foreign_log import ForeignCommitLog
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues import rebuilt
from tieredstore.local.queues.foreign import ClosedDatabaseQueues
from tieredstore.local.queues.interface import ConsumeQueueReader
from tieredstore.local.queues.rebuilt import RebuiltQueues
from tieredstore.message.encoding import Message
from tieredstore.timestamps import parse_delay_levels

FOREVER_MS = 2**63 - 1
KEY = QueueKey("T", 0)


def open_log(root: Path) -> ForeignCommitLog:
    log = ForeignCommitLog(root / "commitlog", PositionalFiles(writable=False))
    log.refresh()
    return log


def make_queues(log: ForeignCommitLog, limit_ms: int = FOREVER_MS) -> RebuiltQueues:
    delays_ms = parse_delay_levels(StoreConfig().message_delay_level)
    queues = RebuiltQueues(log, str(log.directory), delays_ms)
    queues.follow(limit_ms)
    return queues


def contents(queue: ConsumeQueueReader) -> list[tuple[int, ...]]:
    """Return the offset, unit and store time of each message."""
    found: list[tuple[int, ...]] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        for unit in queue.read_units(offset, 7).tolist():
            found.append((offset, *unit, queue.store_time(offset, lambda _: -1)))
            assert queue.unit(offset) == unit
            offset += 1
    assert queue.unit(queue.max_offset) is queue.unit(queue.min_offset - 1) is None
    return found


@pytest.mark.parametrize("piece_bytes", [1, 1000, 4 << 20])
def test_they_are_what_java_put_in_its_database(
    public_rocksdb: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(rebuilt, "PIECE_BYTES", piece_bytes)
    log = open_log(public_rocksdb / "store")
    made = make_queues(log)
    kept = ClosedDatabaseQueues(public_rocksdb / "store" / "consumequeue", log)
    keys = sorted(kept.list_queues())
    assert sorted(made.list_queues()) == keys
    assert len(keys) > 20
    for key in keys:
        ours, java_s = made.open_queue(key), kept.open_queue(key)
        assert ours is not None
        assert java_s is not None
        assert contents(ours) == contents(java_s)
    kept.close()


def test_they_follow_a_log_that_grows_up_to_a_time(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with running(small_config(tmp_path / "s"), clock) as store:
        log = open_log(tmp_path / "s")
        queues = make_queues(log, START_MS - 1)
        assert [*queues.list_queues()] == []
        for number in range(60):
            put_all(store, [plain(number=number, body=b"x" * (40 * number))])
            clock.advance(1)
            log.refresh()
            queues.follow(START_MS + number - 1)
            queue = queues.open_queue(KEY)
            assert (0 if queue is None else queue.max_offset) == number
        queues.follow(START_MS + 59)
        owned = store.find_queue("T", 0)
        queue = queues.open_queue(KEY)
        assert owned is not None
        assert queue is not None
        assert [row[1:4] for row in contents(queue)] == owned.read_units(0, 9).tolist() + [
            unit for first in range(9, 60) for unit in owned.read_units(first, 1).tolist()
        ]


@pytest.mark.parametrize("damage", ["size", "magic", "body", "topic end", "place", "property CRC"])
def test_c02_they_end_before_a_record_that_is_not_whole(tmp_path: Path, damage: str) -> None:
    config = small_config(tmp_path / "s", enabled_append_prop_crc=damage == "property CRC")
    with running(config) as store:
        results = put_all(store, [plain(number=number) for number in range(20)])
    hurt = results[7]
    path = tmp_path / "s" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    start, end = hurt.physical_offset, hurt.physical_offset + hurt.wrote_bytes
    at = {
        "size": start,
        "magic": start + 5,
        "body": data.index(b"body-7", start),
        "topic end": data.index(b"body-7", start) + len("body-7") + 1,
        "place": start + 35,
        "property CRC": data.index(b"KEYS", start),
    }[damage]
    assert at < end
    data[at] = 0 if damage == "topic end" else data[at] ^ 1
    path.write_bytes(data)
    queue = make_queues(open_log(tmp_path / "s")).open_queue(KEY)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (0, 7)


def test_a_log_that_was_cut_and_went_on_otherwise_is_read_anew(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        put_all(store, [plain(number=number) for number in range(10)])
    longer = copy_store(root, tmp_path / "longer")
    for place, topic in ((root, "A"), (longer, "B")):
        with running(small_config(place)) as store:
            put_all(store, [plain(topic, number=number) for number in range(5)])
    log = open_log(root)
    queues = make_queues(log, FOREVER_MS - 1)
    assert sorted(queues.list_queues()) == [QueueKey("A", 0), KEY]
    for path in (root / "commitlog").iterdir():
        path.write_bytes((longer / "commitlog" / path.name).read_bytes())
    queues.follow(FOREVER_MS)
    assert sorted(queues.list_queues()) == [QueueKey("B", 0), KEY]


def test_expired_files_move_the_minimum(public_rocksdb: Path, tmp_path: Path) -> None:
    root = copy_store(public_rocksdb / "store", tmp_path / "store")
    log = open_log(root)
    queues = make_queues(log)
    keys = sorted(queues.list_queues())
    before: dict[QueueKey, Any] = {}
    for key in keys:
        queue = queues.open_queue(key)
        assert queue is not None
        before[key] = contents(queue)
    (root / "commitlog" / f"{0:020d}").unlink()
    log.refresh()
    anew = make_queues(log)
    for key in keys:
        held = [row for row in before[key] if row[1] >= log.min_offset]
        for made in (queues, anew):
            queue = made.open_queue(key)
            assert ([] if queue is None else contents(queue)) == held
    assert any(len(rows) for rows in itertools.chain(before.values()))


def test_a_piece_may_end_with_a_record_without_properties(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(small_config(tmp_path / "s")) as store:
        results = put_all(store, [Message.create("T", b"body") for _ in range(6)])
    monkeypatch.setattr(rebuilt, "PIECE_BYTES", 2 * results[0].wrote_bytes)
    queue = make_queues(open_log(tmp_path / "s")).open_queue(KEY)
    assert queue is not None
    assert [offset for offset, *_ in contents(queue)] == list(range(6))
