"""Every record, unit, index item and checkpoint in the small local stores is decoded correctly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.kit.record_forms import check_record
from tests.kit.units import (
    expand_batch,
    lookup,
    unpack_batch_unit,
    unpack_unit,
    view_batch_units,
    view_units,
)
from tieredstore.message import consume_queue
from tieredstore.message.batch import inner_messages
from tieredstore.message.columns.records import check_bodies, properties_of, record_columns, topics
from tieredstore.message.columns.split import split_messages
from tieredstore.message.columns.walk import Stop, walk_records
from tieredstore.message.crc import property_crc_matches
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.hashes import java_string_hash, local_key_hash, tags_code
from tieredstore.message.index import local as local_index
from tieredstore.message.layout import MAGIC_V1, MAGIC_V2
from tieredstore.message.record import StoredMessage, decode_record

STORES = ["local-plain", "local-propcrc", "local-rocksdb"]
FILE_STORES = STORES[:2]
SLOTS, MAX_ITEMS = 10, 20


def files(directory: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(directory.iterdir()):
        yield path.name, path.read_bytes()


def records(store: Path) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    for _, data in files(store / "commitlog"):
        position = 0
        while (check := check_record(data, position)).size > 0:
            assert check.ok, check
            found.append(decode_record(data, position))
            position += check.size
    return found


def as_message(stored: StoredMessage) -> Message:
    return Message(
        stored.topic,
        stored.body,
        stored.queue_id,
        stored.properties_bytes,
        stored.flag,
        stored.sys_flag,
        stored.born_timestamp_ms,
        stored.born_host_bytes,
        stored.reconsume_times,
        stored.prepared_transaction_offset,
    )


@pytest.mark.parametrize("name", STORES)
def test_every_record_is_read_and_written_again_to_the_byte(golden: Path, name: str) -> None:
    found = records(golden / name)
    inner_batches = 1 if name in FILE_STORES else 0
    assert len(found) == 21 + inner_batches
    assert {message.magic for message in found} == {MAGIC_V1, MAGIC_V2}
    flags = [message.sys_flag for message in found if message.sys_flag]
    assert flags == [0x4, 0x30] + [0xC0] * inner_batches
    for message in found:
        again = encode_record(
            as_message(message),
            message.queue_offset,
            message.physical_offset,
            message.store_timestamp_ms,
            store_host=message.store_host_bytes,
            append_prop_crc=name == "local-propcrc",
        )
        assert again == bytes(message.raw)


@pytest.mark.parametrize("name", STORES)
def test_columns_say_the_same_as_single_records(golden: Path, name: str) -> None:
    stops = []
    for base, data in files(golden / name / "commitlog"):
        walk = walk_records(data)
        stops.append(walk.stop)
        columns = record_columns(data, walk.positions)
        assert check_bodies(data, columns).all()
        assert topics(data, columns) == [
            decode_record(data, position).topic for position in walk.positions.tolist()
        ]
        for row, position in enumerate(walk.positions.tolist()):
            message = decode_record(data, position)
            assert message.physical_offset == int(base) + position
            assert columns.physical_offsets[row] == message.physical_offset
            assert columns.store_timestamps[row] == message.store_timestamp_ms
            assert columns.born_timestamps[row] == message.born_timestamp_ms
            assert columns.queue_offsets[row] == message.queue_offset
            assert columns.queue_ids[row] == message.queue_id
            assert columns.reconsume_times[row] == message.reconsume_times
            assert properties_of(data, columns)[row] == message.properties_bytes
    assert stops == [Stop.BLANK, Stop.EMPTY]


def test_property_crcs_hold(golden: Path) -> None:
    for message in records(golden / "local-propcrc"):
        assert property_crc_matches(message.buffer, message.position, message.size) is True
        assert check_record(message.buffer, message.position, check_property_crc=True).ok
    for message in records(golden / "local-plain"):
        assert property_crc_matches(message.buffer, message.position, message.size) is None


@pytest.mark.parametrize("name", FILE_STORES)
def test_every_unit_names_its_record(golden: Path, name: str) -> None:
    store = golden / name
    by_offset = {message.physical_offset: message for message in records(store)}
    seen = 0
    for path in (store / "consumequeue").glob("*/*/*"):
        data = path.read_bytes()
        units = view_units(data)
        for index, row in enumerate(units.tolist()):
            unit = unpack_unit(data, index * consume_queue.UNIT_SIZE)
            assert unit == row
            assert consume_queue.pack_unit(*unit) == data[index * 20 : index * 20 + 20]
            if unit.size == 0:
                assert not units[index:]["size"].any()
                break
            message = by_offset[unit.physical_offset]
            assert unit.size == message.size
            if message.topic == "SCHEDULE_TOPIC_XXXX":  # delay level 3 is 10 s
                assert unit.tags_code == message.store_timestamp_ms + 10_000
            else:
                assert unit.tags_code == tags_code(message.tags)
            if not path.parts[-3].startswith("%LMQ%"):
                assert message.topic == path.parts[-3]
                assert message.queue_offset == int(path.name) // 20 + index
            seen += 1
    # 22 records less the prepared one and the inner batch, and two units of light queues.
    assert seen == 22


@pytest.mark.parametrize("name", FILE_STORES)
def test_units_and_records_split_into_messages(golden: Path, name: str) -> None:
    store = golden / name
    log = (store / "commitlog" / "0".zfill(20)).read_bytes()
    units = view_units((store / "consumequeue" / "TopicTest" / "1" / "0".zfill(20)).read_bytes())
    first_file = units[units["physical_offset"] < 4096]
    split = split_messages(first_file, log, buffer_offset=0)
    assert split.is_complete
    assert [message.queue_offset for message in split.messages] == split.indexes.tolist()
    assert [message.tags_code for message in split.messages] == first_file["tags_code"].tolist()


@pytest.mark.parametrize("name", FILE_STORES)
def test_the_batch_unit_and_its_inner_messages(golden: Path, name: str) -> None:
    store = golden / name
    path = store / "batchconsumequeue" / "BT" / "0" / "0".zfill(20)
    data = path.read_bytes()
    unit = unpack_batch_unit(data)
    [message] = [message for message in records(store) if message.topic == "BT"]
    assert unit == consume_queue.BatchUnit(
        message.physical_offset, message.size, 0, message.store_timestamp_ms, 0, 2
    )
    assert consume_queue.pack_batch_unit(unit) == data[:46]
    assert view_batch_units(data)[0].tolist() == tuple(unit)
    inner = inner_messages(message)
    assert [(item.queue_offset, item.flag) for item in inner] == [(0, 0), (1, 0)]
    assert [item.body for item in expand_batch(as_message(message))] == [
        item.body for item in inner
    ]


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("at_once", [1, 100])
def test_the_index_files_come_out_byte_for_byte(golden: Path, name: str, at_once: int) -> None:
    """The index files equal Java's byte for byte. Java 5.5.0 indexes the UNIQ_KEY, each key, and
    the tag as `T#<tags>`."""
    entries: list[tuple[int, int, int]] = []
    for message in records(golden / name):
        keys = [message.uniq_key] if message.uniq_key else []
        keys += message.keys
        keys += [f"T#{message.tags}"] if message.tags else []
        place = (message.physical_offset, message.store_timestamp_ms)
        entries += [(local_key_hash(message.topic, key), *place) for key in keys]
    expected = [data for _, data in files(golden / name / "index")]
    made = [new_index(local_index.LocalIndexHeader())]
    while entries:
        chunk = np.array(entries[:at_once], dtype=np.int64)
        put = local_index.put_items(
            made[-1], SLOTS, chunk[:, 0].astype(np.int32), chunk[:, 1], chunk[:, 2]
        )
        del entries[:put]
        if put < len(chunk):
            last = local_index.LocalIndexHeader.unpack(made[-1])
            assert last.index_count >= MAX_ITEMS
            made.append(
                new_index(
                    local_index.LocalIndexHeader(
                        last.end_timestamp_ms,
                        last.end_timestamp_ms,
                        last.end_physical_offset,
                        last.end_physical_offset,
                    )
                )
            )
    assert made == expected


def new_index(header: local_index.LocalIndexHeader) -> bytearray:
    data = bytearray(local_index.file_size(SLOTS, MAX_ITEMS))
    data[: local_index.HEADER_SIZE] = header.pack()
    return data


@pytest.mark.parametrize("name", STORES)
def test_every_key_is_found_in_the_index_files(golden: Path, name: str) -> None:
    indexes = [data for _, data in files(golden / name / "index")]
    for message in records(golden / name):
        for key in [*message.keys, *filter(None, [message.uniq_key])]:
            key_hash = local_key_hash(message.topic, key)
            assert key_hash == abs(java_string_hash(f"{message.topic}#{key}"))
            time = message.store_timestamp_ms
            found = [
                offset
                for data in indexes
                for offset in lookup(data, SLOTS, key_hash, time, time, 64)
            ]
            assert message.physical_offset in found
