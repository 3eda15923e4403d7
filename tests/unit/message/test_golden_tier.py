"""Tests of the small tiers written by Java 5.3.3 and 5.5.0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.kit.index_chains import put_item, walk_tiered_chain
from tests.kit.record_forms import record_positions
from tests.kit.units import pack_units, view_units
from tieredstore.message.columns.records import record_columns
from tieredstore.message.columns.split import split_messages
from tieredstore.message.hashes import tiered_key_hash, tiered_key_hashes
from tieredstore.message.index import tiered as tiered_index

VERSIONS = ["java-5.3.3", "java-5.5.0"]
SLOTS, MAX_ITEMS = 4, 10


def segments(golden: Path, version: str, kind: str) -> list[bytes]:
    root = next((golden / version / "tier").iterdir())
    paths = root.glob(f"broker-a/*/*/{kind}/*")
    return [path.read_bytes() for path in sorted(paths, key=lambda path: path.name[8:])]


@pytest.mark.parametrize("version", VERSIONS)
def test_segments_hold_the_messages_that_the_units_name(golden: Path, version: str) -> None:
    log = b"".join(segments(golden, version, "COMMIT_LOG"))
    [queue] = segments(golden, version, "CONSUME_QUEUE")
    units = view_units(queue)
    assert pack_units(units.tolist()) == queue
    columns = record_columns(log, record_positions(log))
    assert columns.physical_offsets.tolist() == units["physical_offset"].tolist()
    assert columns.sizes.tolist() == units["size"].tolist()
    split = split_messages(units, log)
    assert split.is_complete
    assert [message.queue_offset for message in split.messages] == list(range(100, 105))
    assert {message.tags_code for message in split.messages} == {2598919}
    assert split.messages[2].store_timestamp_ms == 1700000002000
    # The second segment alone: its first byte is at offset 270.
    second = segments(golden, version, "COMMIT_LOG")[1]
    part = split_messages(units[2:4], second)
    assert [message.physical_offset for message in part.messages] == [270, 405]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("memory_bytes", "block_items"), [(1 << 20, 1 << 18), (8, 1), (24, 2)])
def test_compaction_gives_the_uploaded_bytes(
    golden: Path, version: str, memory_bytes: int, block_items: int
) -> None:
    unsealed = (golden / version / "unsealed.idx").read_bytes()
    [uploaded] = segments(golden, version, "INDEX")
    blocks = list(
        tiered_index.compact(unsealed, SLOTS, memory_bytes=memory_bytes, block_items=block_items)
    )
    assert b"".join(blocks) == uploaded
    assert len(uploaded) == tiered_index.compacted_size(SLOTS, 5)
    assert tiered_index.infer_slots(len(uploaded), 5) == SLOTS


@pytest.mark.parametrize("version", VERSIONS)
def test_puts_give_the_unsealed_bytes(golden: Path, version: str) -> None:
    expected = (golden / version / "unsealed.idx").read_bytes()
    assert len(expected) == tiered_index.unsealed_size(SLOTS, MAX_ITEMS)
    header = tiered_index.unpack_header(expected)
    items = tiered_index.items_view(expected, SLOTS, 6)[1:]
    times = header.begin_timestamp_ms + items["time_diff_seconds"].astype(np.int64) * 1000
    times[-1] = header.end_timestamp_ms
    new = bytearray(len(expected))
    new[: tiered_index.HEADER_SIZE] = tiered_index.pack_header(
        tiered_index.IndexHeader(header.begin_timestamp_ms)
    )
    scalar = bytearray(new)
    hashes = tiered_key_hashes("TopicA", [f"k{number}" for number in range(5)])
    assert hashes.tolist() == items["hash"].tolist()
    tiered_index.put_items(new, SLOTS, hashes, 0, 3, items["offset"], items["size"], times)
    assert new == expected
    for row, time in zip(items.tolist(), times.tolist(), strict=True):
        key_hash, topic_id, queue_id, offset, size, *_ = row
        put_item(scalar, SLOTS, key_hash, topic_id, queue_id, offset, size, time)
    assert scalar == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_keys_are_found_in_both_forms(golden: Path, version: str) -> None:
    unsealed = (golden / version / "unsealed.idx").read_bytes()
    [uploaded] = segments(golden, version, "INDEX")
    for number in range(5):
        key_hash = tiered_key_hash("TopicA", f"k{number}")
        [item] = walk_tiered_chain(unsealed, SLOTS, key_hash)
        assert (item.queue_id, item.offset, item.size) == (3, number * 126, 126)
        slot = tiered_index.HEADER_SIZE + key_hash % SLOTS * tiered_index.SLOT_SIZE
        position, length = tiered_index.unpack_compacted_slot(uploaded, slot)
        rows = np.frombuffer(
            uploaded[position : position + length], tiered_index.COMPACTED_ITEM_DTYPE
        )
        assert item[:6] in rows.tolist()


def test_an_empty_file_is_compacted_as_5_5_0_does() -> None:
    data = bytearray(tiered_index.unsealed_size(SLOTS, MAX_ITEMS))
    header = tiered_index.IndexHeader(2000)
    data[: tiered_index.HEADER_SIZE] = tiered_index.pack_header(header)
    expected = tiered_index.pack_header(replace(header, magic=tiered_index.MAGIC_END))
    expected += bytes.fromhex("0000003c00000000") * SLOTS
    assert b"".join(tiered_index.compact(data, SLOTS)) == expected
