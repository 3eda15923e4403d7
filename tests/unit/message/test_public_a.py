"""All 2,126 records of a production store match its manifest."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.index_chains import walk_tiered_chain
from tests.kit.record_forms import record_positions
from tests.kit.units import view_units
from tieredstore.message import sysflag
from tieredstore.message.columns import records as columns
from tieredstore.message.columns.split import split_messages
from tieredstore.message.encoding import Message, RecordEncoder
from tieredstore.message.hashes import tags_code, tiered_key_hash_candidates
from tieredstore.message.index import tiered as tiered_index
from tieredstore.message.names import queue_path
from tieredstore.message.record import StoredMessage, decode_record

Expected = list[tuple[StoredMessage, dict[str, Any]]]


@pytest.fixture(scope="module")
def logs(public_a: Path) -> dict[int, bytes]:
    return {int(path.name): path.read_bytes() for path in (public_a / "store/commitlog").iterdir()}


@pytest.fixture(scope="module")
def expected(logs: dict[int, bytes], public_a_manifest: dict[str, Any]) -> Expected:
    by_offset = {row["physicalOffset"]: row for row in public_a_manifest["messages"]}
    pairs = [
        (decode_record(data, position), by_offset.pop(base + position))
        for base, data in logs.items()
        for position in record_positions(data).tolist()
    ]
    assert by_offset == {}
    assert len(pairs) == 2126
    return pairs


def sha256(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def test_every_field_of_every_record(expected: Expected) -> None:
    for message, row in expected:
        assert sha256(message.raw) == row["rawSHA256"]
        assert {
            "topic": message.topic,
            "queueId": message.queue_id,
            "queueOffset": message.queue_offset,
            "physicalOffset": message.physical_offset,
            "storeSize": message.size,
            "magic": message.magic - 2**32,
            "bodyCRC": message.body_crc,
            "flag": message.flag,
            "sysFlag": message.sys_flag & ~sysflag.COMPRESSED,  # Java's decoder clears it
            "bornTimestamp": message.born_timestamp_ms,
            "storeTimestamp": message.store_timestamp_ms,
            "bornHost": "/" + message.born_host,
            "storeHost": "/" + message.store_host,
            "reconsumeTimes": message.reconsume_times,
            "preparedTransactionOffset": message.prepared_transaction_offset,
            "properties": message.properties,
            "offsetMsgId": message.offset_message_id,
        }.items() <= row.items()
        assert message.uniq_key == row["uniqKey"]
        assert message.tags == row["tags"]
        assert " ".join(message.keys) == (row["keys"] or "")


def test_every_body_compressed_or_not(expected: Expected) -> None:
    types = []
    for message, row in expected:
        message.check_body()
        body = message.decode_body()
        assert (sha256(body), len(body)) == (row["bodySHA256"], row["bodyLength"])
        if "storedBodySHA256" in row:
            types.append(sysflag.compression_type(message.sys_flag))
            assert sha256(message.body) == row["storedBodySHA256"]
            assert message.body_length == row["storedBodyLength"]
    assert len(types) == 30
    assert set(types) == set(sysflag.CompressionType)


def test_every_record_is_written_again_to_the_byte(expected: Expected) -> None:
    encoders: dict[bytes, RecordEncoder] = {}
    for message, _ in expected:
        host = message.store_host_bytes
        encoder = encoders.setdefault(host, RecordEncoder(host))
        parts: list[bytes | bytearray | memoryview] = []
        encoder.append(
            parts,
            Message(
                message.topic,
                message.body,
                message.queue_id,
                message.properties_bytes,
                message.flag,
                message.sys_flag,
                message.born_timestamp_ms,
                message.born_host_bytes,
                message.reconsume_times,
                message.prepared_transaction_offset,
            ),
            message.queue_offset,
            message.physical_offset,
            message.store_timestamp_ms,
        )
        assert b"".join(parts) == message.raw


def test_columns_of_whole_files(logs: dict[int, bytes], expected: Expected) -> None:
    rows = iter(expected)
    for data in logs.values():
        found = columns.record_columns(data, record_positions(data))
        assert columns.check_bodies(data, found).all()
        names = columns.topics(data, found)
        times = columns.store_timestamps(data, found.positions)
        assert times.tolist() == found.store_timestamps.tolist()
        for index in range(len(found)):
            message, row = next(rows)
            assert names[index] == row["topic"]
            assert found.store_timestamps[index] == row["storeTimestamp"]
            assert found.prepared_transaction_offsets[index] == row["preparedTransactionOffset"]
            assert found.body_lengths[index] == message.body_length
            assert found.sys_flags[index] == message.sys_flag


def test_index_keys_are_uniq_key_and_keys(logs: dict[int, bytes], expected: Expected) -> None:
    rows = iter(expected)
    for data in logs.values():
        found = columns.record_columns(data, record_positions(data))
        indexes, keys = columns.index_keys(data, found)
        for index in range(len(found)):
            _, row = next(rows)
            wanted = [row["uniqKey"]] if row["uniqKey"] else []
            wanted += [key for key in (row["keys"] or "").split() if key not in wanted]
            assert [keys[at] for at in np.flatnonzero(indexes == index)] == wanted


def test_rewritten_records_are_those_of_the_tier(expected: Expected) -> None:
    tiered = 0
    for message, row in expected:
        if "tiered" in row:
            raw = bytearray(message.raw)
            offset = row["tiered"]["commitLogOffset"]
            columns.rewrite_physical_offsets(raw, np.array([0]), [offset])
            assert sha256(raw) == row["tiered"]["rawSHA256"]
            assert tags_code(message.tags) == row["tiered"]["tagsCode"]
            tiered += 1
    assert tiered > 1000


def test_the_tiers_segments_split_into_the_messages_of_the_manifest(
    public_a: Path, expected: Expected
) -> None:
    tier = next((public_a / "tiered").iterdir())
    by_queue: dict[str, dict[int, str]] = {}
    for _, row in expected:
        if "tiered" in row:
            path = queue_path("labBroker", row["topic"], row["queueId"])
            by_queue.setdefault(path, {})[row["queueOffset"]] = row["tiered"]["rawSHA256"]

    def whole(path: str, kind: str) -> tuple[int, bytes]:
        found = sorted((tier / path / kind).iterdir(), key=lambda file: file.name[-20:])
        return int(found[0].name[-20:]), b"".join(file.read_bytes() for file in found)

    for path, wanted in by_queue.items():
        first, queue = whole(path, "CONSUME_QUEUE")
        base, log = whole(path, "COMMIT_LOG")
        units = view_units(queue)
        units = units[units["physical_offset"] >= base]  # one queue's first segment has expired
        split = split_messages(units, log, buffer_offset=base)
        assert split.is_complete
        skipped = len(queue) // 20 - len(units)
        for message, index in zip(split.messages, split.indexes.tolist(), strict=True):
            assert message.queue_offset == first // 20 + skipped + index
            if message.queue_offset in wanted:  # older ones are in the tier only
                assert sha256(message.raw) == wanted[message.queue_offset]


def test_the_live_index_finds_every_key_of_its_time(public_a: Path, expected: Expected) -> None:
    [path] = (public_a / "live-index").iterdir()
    data = path.read_bytes()
    header = tiered_index.unpack_header(data)
    settings = dict(
        line.split("=", 1)
        for line in (public_a / "broker.conf").read_text().splitlines()
        if "=" in line
    )
    slots = int(settings["tieredStoreIndexFileMaxHashSlotNum"])
    assert len(data) == tiered_index.unsealed_size(
        slots, int(settings["tieredStoreIndexFileMaxIndexNum"])
    )
    places = {
        (row["queueId"], row["tiered"]["commitLogOffset"], row["tiered"]["size"])
        for _, row in expected
        if "tiered" in row
    }
    items = tiered_index.items_view(data, slots, header.items + 1)[1:]
    assert {(row[2], row[3], row[4]) for row in items.tolist()} <= places
    hashes = set(items["hash"].tolist())
    found = 0
    for message, row in expected:
        if "tiered" not in row or not message.uniq_key:
            continue
        [*candidates] = tiered_key_hash_candidates(message.topic, message.uniq_key)
        chain = list(walk_tiered_chain(data, slots, candidates[0]))
        assert bool(chain) == (candidates[0] in hashes)
        found += any(item.offset == row["tiered"]["commitLogOffset"] for item in chain)
    assert found > 0


def test_the_live_index_is_compacted_to_the_bytes_that_java_uploaded(public_a: Path) -> None:
    [path] = (public_a / "live-index").iterdir()
    data = path.read_bytes()
    begin = tiered_index.unpack_header(data).begin_timestamp_ms
    [uploaded] = [
        segment
        for file in (public_a / "tiered").rglob("rmq_sys_INDEX/0/INDEX/*")
        if tiered_index.unpack_header(segment := file.read_bytes()).begin_timestamp_ms == begin
    ]
    slots = tiered_index.infer_slots(len(uploaded), tiered_index.unpack_header(uploaded).items)
    assert slots == 200
    for memory_bytes, block_items in ((1 << 20, 1 << 18), (4096, 100)):
        blocks = tiered_index.compact(
            data, slots, memory_bytes=memory_bytes, block_items=block_items
        )
        assert b"".join(blocks) == uploaded
