"""Tests of queues whose records contain several messages: units, searches and gets."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.local_stores import START_MS, copy_store, plain, put_all, running, small_config
from tests.kit.record_forms import encode_batch
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import BoundaryType, GetMessageStatus, GetRequest
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.batch_consume_queue_store import BatchConsumeQueue
from tieredstore.local.queues.consume_queue_store import BATCH_DIRECTORY
from tieredstore.local.read_only import open_read_only
from tieredstore.local.recovery.checkpoint import read_checkpoint, write_checkpoint
from tieredstore.local.store_reads import StoreReads
from tieredstore.message.batch import BatchItem, inner_messages
from tieredstore.message.buffers import Buffer
from tieredstore.message.consume_queue import BatchUnit
from tieredstore.message.encoding import Message, RecordEncoder
from tieredstore.message.hosts import LOCALHOST
from tieredstore.message.record import StoredMessage
from tieredstore.message.sysflag import INNER_BATCH
from tieredstore.message.tag_filter import TagFilter

UNITS_PER_FILE = 5
STEP_MS = 100


def fail_call(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def unit(number: int) -> BatchUnit:
    """Return the unit of record `number`, at log offset 1000 * number. The record has 10 messages,
    100 ms apart."""
    return BatchUnit(number * 1000, 900, number, START_MS + number * STEP_MS, number * 10, 10)


def opened(folder: Path, *, owner: bool = True) -> BatchConsumeQueue:
    files = PositionalFiles(writable=owner)
    queue = BatchConsumeQueue("B", 0, folder, files, UNITS_PER_FILE * 46 if owner else None)
    queue.load(owner=owner)
    return queue


def filled(folder: Path, count: int) -> BatchConsumeQueue:
    queue = opened(folder)
    for number in range(count):
        queue.append(unit(number))
    queue.sync()
    return queue


def test_units_stay_to_be_synced_where_a_sync_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = opened(tmp_path / "q")
    queue.append(unit(0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail_call)
        with pytest.raises(Unavailable):
            queue.sync()
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    queue.sync()
    queue.sync()
    assert len(synced) == 1


def all_units(queue: BatchConsumeQueue) -> list[BatchUnit]:
    found: list[BatchUnit] = []
    number = queue.first
    while number < queue.end:
        rows = queue.read_units(number, 3).tolist()
        found += [BatchUnit(*row) for row in rows]
        number += len(rows)
    return found


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 19])
def test_what_was_put_is_there_also_after_reopening(tmp_path: Path, count: int) -> None:
    made = filled(tmp_path / "q", count)
    for queue in (made, opened(tmp_path / "q"), opened(tmp_path / "q", owner=False)):
        assert all_units(queue) == [unit(number) for number in range(count)]
        assert queue.min_offset == (0 if count else -1)
        assert queue.max_offset == count * 10
        assert queue.max_physical_offset == ((count - 1) * 1000 + 900 if count else 0)


def test_a_record_that_is_there_is_skipped(tmp_path: Path) -> None:
    queue = filled(tmp_path / "q", 7)
    for number in (0, 6, 7):
        queue.append(unit(number))
    assert all_units(queue) == [unit(number) for number in range(8)]


def test_an_offset_is_found_in_the_unit_that_has_it(tmp_path: Path) -> None:
    queue = filled(tmp_path / "q", 19)
    assert [queue.find(offset) for offset in (0, 9, 10, 55, 189, 9999)] == [0, 0, 1, 5, 18, 18]
    assert queue.store_time(55) == START_MS + 5 * STEP_MS
    assert queue.store_time(-1) == queue.store_time(190) == -1


@pytest.mark.parametrize(
    ("time", "lower", "upper"),
    [
        (START_MS - 1, 0, 0),
        (START_MS, 0, 9),
        (START_MS + 899, 90, 89),
        (START_MS + 900, 90, 99),
        (START_MS + 901, 100, 99),
        (START_MS + 1800, 180, 189),
        (START_MS + 9999, 190, 189),
    ],
)
def test_both_boundaries_of_a_search_by_time(
    tmp_path: Path, time: int, lower: int, upper: int
) -> None:
    queue = filled(tmp_path / "q", 19)
    assert queue.find_by_time(time, upper=False) == lower
    assert queue.find_by_time(time, upper=True) == upper


@pytest.mark.parametrize("physical", [0, 1, 4000, 4001, 12_000, 99_999])
def test_what_expired_goes_and_the_last_file_stays(tmp_path: Path, physical: int) -> None:
    queue = filled(tmp_path / "q", 19)
    first = min(-(-physical // 1000), 19)
    assert queue.delete_expired(physical) == min(first // UNITS_PER_FILE, 3)
    assert queue.delete_expired(physical) == 0
    assert all_units(queue) == [unit(number) for number in range(first, 19)]
    assert queue.max_offset == 190
    again = opened(tmp_path / "q")
    again.correct_min_offset(physical)
    assert all_units(again) == all_units(queue)
    again.append(unit(19))
    assert again.max_offset == 200


@pytest.mark.parametrize("kept", [0, 1, 5, 7, 19])
def test_what_is_truncated_does_not_come_back(tmp_path: Path, kept: int) -> None:
    queue = filled(tmp_path / "q", 19)
    queue.truncate((kept - 1) * 1000 + 900 if kept else 0)
    queue.sync()
    again = opened(tmp_path / "q")
    assert all_units(again) == all_units(queue) == [unit(number) for number in range(kept)]
    again.append(unit(kept))
    assert all_units(opened(tmp_path / "q")) == [unit(number) for number in range(kept + 1)]


def test_a_reader_beside_an_owner_ends_with_what_is_flushed(tmp_path: Path) -> None:
    filled(tmp_path / "q", 9)
    queue = opened(tmp_path / "q", owner=False)
    queue.limit_to_time(START_MS + 350)
    assert queue.max_offset == 40


# Through a store. One of Java's is made longer by records such as its producers send.


def batch_record(number: int, base: int, physical_offset: int, tags: str) -> bytes:
    items = [BatchItem(0, b"body-%d" % (base + inner), b"") for inner in range(10)]
    message = Message.create("B", encode_batch(items), tags=tags)
    properties = message.properties + b"INNER_NUM\x0110\x02INNER_BASE\x01%d\x02" % base
    message = Message(
        "B", message.body, 0, properties, sys_flag=INNER_BATCH, born_timestamp_ms=START_MS
    )
    encoder = RecordEncoder(LOCALHOST, append_prop_crc=False, max_body_bytes=1 << 20)
    parts: list[Buffer] = []
    encoder.append(parts, message, base, physical_offset, START_MS + number * STEP_MS)
    return b"".join(bytes(part) for part in parts)


@contextmanager
def stores(root: Path, count: int = 9) -> Iterator[list[StoreReads]]:
    """A store with a batch queue, opened by its owner and by a reader."""
    config = small_config(root, mapped_file_size_commit_log_bytes=1 << 16)
    with running(config) as store:
        put_all(store, [plain()])
        position = store.commit_log.max_offset
    log = root / "commitlog" / "0".zfill(20)
    folder = root / BATCH_DIRECTORY / "B" / "0"
    queue = opened(folder)
    with log.open("r+b") as file:
        for number in range(count):
            record = batch_record(
                number, number * 10, position, "even" if number % 2 == 0 else "odd"
            )
            file.seek(position)
            file.write(record)
            hashed = TagFilter.parse("even" if number % 2 == 0 else "odd")
            assert hashed.codes is not None
            [code] = hashed.codes
            queue.append(
                BatchUnit(position, len(record), code, START_MS + number * STEP_MS, number * 10, 10)
            )
            position += len(record)
    queue.sync()
    shutil.copytree(root, root.with_name("copy"))
    reader = open_read_only(root.with_name("copy"))
    with running(config) as store:
        yield [store, reader]
    reader.shutdown()


def bodies(messages: list[StoredMessage]) -> list[bytes]:
    return [bytes(inner.body) for message in messages for inner in inner_messages(message)]


def test_gets_give_whole_records(tmp_path: Path) -> None:
    with stores(tmp_path / "s") as both:
        for store in both:
            assert store.batch_topics == {"B"}
            result = store.get(GetRequest("B", 0, 25, 30))
            assert (result.min_offset, result.max_offset) == (0, 90)
            assert bodies(result.messages) == [b"body-%d" % number for number in range(20, 50)]
            assert (result.status, result.next_begin_offset) == (GetMessageStatus.FOUND, 50)
            result = store.get(GetRequest("B", 0, 25, 1))  # one record at least
            assert len(result.messages) == 1
            offset, seen = 0, 0
            while (result := store.get(GetRequest("B", 0, offset, 20))).messages:
                offset = result.next_begin_offset
                seen += len(bodies(result.messages))
            assert (offset, seen) == (90, 90)


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, GetMessageStatus.OFFSET_TOO_SMALL, 0),
        (90, GetMessageStatus.OFFSET_OVERFLOW_ONE, 90),
        (91, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 90),
    ],
)
def test_gets_outside_say_so(
    tmp_path: Path, offset: int, status: GetMessageStatus, next_offset: int
) -> None:
    with stores(tmp_path / "s") as both:
        for store in both:
            result = store.get(GetRequest("B", 0, offset))
            assert (result.status, result.next_begin_offset) == (status, next_offset)
            unknown = store.get(GetRequest("B", 7, 0))
            assert unknown.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE


def test_a_filter_goes_by_the_tags_of_the_record(tmp_path: Path) -> None:
    with stores(tmp_path / "s") as both:
        for store in both:
            request = GetRequest("B", 0, 0, 20, message_filter=TagFilter.parse("odd"))
            result = store.get(request)
            assert [message.queue_offset for message in result.messages] == [10, 30]
            assert result.next_begin_offset == 40
            nothing = GetRequest("B", 0, 0, 20, message_filter=TagFilter.parse("none"))
            assert store.get(nothing).status is GetMessageStatus.NO_MATCHED_MESSAGE


def test_offsets_and_times(tmp_path: Path) -> None:
    with stores(tmp_path / "s") as both:
        for store in both:
            assert store.get_min_offset_in_queue("B", 0) == 0
            assert store.get_max_offset_in_queue("B", 0) == 90
            assert store.get_max_offset_in_queue("B", 3) == 0
            assert store.get_earliest_message_time("B", 0) == START_MS
            assert store.get_message_store_timestamp("B", 0, 35) == START_MS + 300
            find = store.get_offset_in_queue_by_time
            assert find("B", 0, START_MS + 250) == 30
            assert find("B", 0, START_MS + 250, BoundaryType.UPPER) == 29
            assert find("B", 3, START_MS) == 0


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    with stores(tmp_path / "s") as both:
        [message] = both[1].get(GetRequest("B", 0, 30, 1)).messages
        log = tmp_path / "copy" / "commitlog" / "0".zfill(20)
        data = bytearray(log.read_bytes())
        data[message.physical_offset + 100] ^= 1
        log.write_bytes(data)
        reader = open_read_only(tmp_path / "copy")
        with pytest.raises(Corrupt, match="messages from 30 on of B/0"):
            reader.get(GetRequest("B", 0, 30, 1))
        assert len(reader.get(GetRequest("B", 0, 10, 99)).messages) == 2


def test_what_is_put_behind_is_no_part_of_it(tmp_path: Path) -> None:
    with stores(tmp_path / "s") as (store, _):
        assert store.put_message(plain("B")).status.name == "MESSAGE_ILLEGAL"  # type: ignore[attr-defined]
        assert QueueKey("B", 0) not in store.dispatch_source.queues()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["local-plain", "local-propcrc"])
def test_a_batch_queue_of_java_is_read(golden: Path, tmp_path: Path, name: str) -> None:
    config = small_config(
        copy_store(golden / name, tmp_path / "s"), enabled_append_prop_crc=name == "local-propcrc"
    )
    reader = open_read_only(golden / name)
    with running(config) as store:
        for opened_store in (store, reader):
            assert opened_store.get_max_offset_in_queue("BT", 0) == 2
            result = opened_store.get(GetRequest("BT", 0, 1, 9))
            assert result.next_begin_offset == 2
            assert [inner.queue_offset for inner in inner_messages(result.messages[0])] == [0, 1]


@pytest.mark.parametrize("lost", [1, 4, 9])
def test_records_that_no_queue_knows_yet_are_put_in_it_at_the_start(
    tmp_path: Path, lost: int
) -> None:
    """A start adds the missing units of batch records after a kill."""
    with stores(tmp_path / "s") as (_, reader):
        end = reader.get(GetRequest("B", 0, 0, 1)).messages[0].physical_offset
    root = tmp_path / "copy"
    folder = root / BATCH_DIRECTORY / "B" / "0"
    queue = opened(folder)
    whole = all_units(queue)
    queue.truncate(whole[-lost].physical_offset)
    queue.sync()
    checkpoint = read_checkpoint(root)
    checkpoint.logics_physical_offset = end
    write_checkpoint(root, checkpoint)
    with running(small_config(root, mapped_file_size_commit_log_bytes=1 << 16)) as store:
        assert store.get_max_offset_in_queue("B", 0) == 90
        assert len(bodies(store.get(GetRequest("B", 0, 60, 30)).messages)) == 30
        assert QueueKey("B", 0) not in store.dispatch_source.queues()
    assert all_units(opened(folder)) == whole
