"""The scalar and the columnar decoder of records agree, and no input crashes either decoder."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.record_forms import check_record
from tests.kit.strategies import HOST, I64, MESSAGE, corrupt_or_none
from tieredstore.message import layout, sysflag
from tieredstore.message.columns import records as columns
from tieredstore.message.columns.split import split_messages
from tieredstore.message.columns.walk import walk_records
from tieredstore.message.consume_queue import make_units
from tieredstore.message.crc import property_crc_matches
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.properties import decode_properties, remove_property
from tieredstore.message.record import StoredMessage, blank_record, decode_record

STORED = st.tuples(MESSAGE, I64, I64, I64)
LOGS = st.lists(STORED, max_size=40).map(lambda rows: [encode_record(*row) for row in rows])
# Runs of equal sizes take the guessing path of the walk.
RUNS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), max_size=6).map(
    lambda runs: [
        encode_record(Message("T", bytes(size)), 0, 0, 0)
        for size, count in runs
        for _ in range(count)
    ]
)


@given(MESSAGE, I64, I64, I64, HOST, st.booleans())
def test_a_record_holds_what_was_put(
    message: Message, queue_offset: int, offset: int, time: int, host: bytes, prop_crc: bool
) -> None:
    raw = encode_record(
        message, queue_offset, offset, time, store_host=host, append_prop_crc=prop_crc
    )
    found = decode_record(b"\xff" * 7 + raw + b"\xff" * 7, 7)
    assert bytes(found.raw) == raw
    assert found.topic == message.topic
    assert bytes(found.body) == message.body
    assert found.body_crc == zlib.crc32(message.body) & 0x7FFFFFFF
    assert found.queue_id == message.queue_id
    assert found.flag == message.flag
    v6 = sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6
    assert found.sys_flag & ~v6 == message.sys_flag & ~v6
    assert found.born_host_bytes == message.born_host
    assert found.store_host_bytes == host
    assert found.born_timestamp_ms == message.born_timestamp_ms
    assert found.store_timestamp_ms == time
    assert found.queue_offset == queue_offset
    assert found.physical_offset == offset
    assert found.reconsume_times == message.reconsume_times
    assert found.prepared_transaction_offset == message.prepared_transaction_offset
    if prop_crc:
        assert property_crc_matches(raw, 0, len(raw)) is True
        kept = remove_property(message.properties, b"__CRC32#")
        assert found.properties_bytes.startswith(kept)
    else:
        assert found.properties_bytes == message.properties
        assert found.properties == decode_properties(message.properties)
        for name in ("KEYS", "TAGS", "UNIQ_KEY"):
            assert found.get_property(name) == found.properties.get(name)
    assert check_record(raw, 0, check_property_crc=prop_crc).size == len(raw)


@given(LOGS | RUNS, st.sampled_from([b"", bytes(20), blank_record(20), b"\xff" * 20]))
def test_columns_equal_single_records(records: list[bytes], tail: bytes) -> None:
    data = b"".join(records) + tail
    walk = walk_records(data)
    expected = np.cumsum([0, *map(len, records)]).tolist()
    assert walk.positions.tolist() == expected[:-1]
    assert walk.next_position == expected[-1]
    found = columns.record_columns(data, walk.positions)
    singles = [decode_record(data, position) for position in expected[:-1]]
    assert found.sizes.tolist() == [one.size for one in singles]
    assert found.body_crcs.tolist() == [one.body_crc for one in singles]
    assert found.queue_ids.tolist() == [one.queue_id for one in singles]
    assert found.flags.tolist() == [one.flag for one in singles]
    assert found.queue_offsets.tolist() == [one.queue_offset for one in singles]
    assert found.physical_offsets.tolist() == [one.physical_offset for one in singles]
    assert found.sys_flags.tolist() == [one.sys_flag for one in singles]
    assert found.born_timestamps.tolist() == [one.born_timestamp_ms for one in singles]
    assert found.store_timestamps.tolist() == [one.store_timestamp_ms for one in singles]
    assert found.reconsume_times.tolist() == [one.reconsume_times for one in singles]
    assert found.prepared_transaction_offsets.tolist() == [
        one.prepared_transaction_offset for one in singles
    ]
    for name in ("body", "topic", "properties"):
        for part in ("offset", "length"):
            column = getattr(found, f"{name}_{part}s").tolist()
            assert column == [getattr(one.sections, f"{name}_{part}") for one in singles]
    times = columns.store_timestamps(data, walk.positions)
    assert times.tolist() == found.store_timestamps.tolist()
    assert columns.check_bodies(data, found).all()
    assert columns.topics(data, found) == [one.topic for one in singles]
    assert columns.properties_of(data, found) == [one.properties_bytes for one in singles]


def touch_everything(message: StoredMessage) -> None:
    """Read every property of a decoded record. Each read returns a value or raises Corrupt."""
    reads: list[Callable[[], object]] = [
        partial(getattr, message, name)
        for name in dir(StoredMessage)
        if not name.startswith("_") and isinstance(getattr(StoredMessage, name), property)
    ]
    reads += [message.check_body, partial(message.decode_body, 1000)]
    for read in reads:
        error = corrupt_or_none(read)
        assert error is None or error.offset == message.position


def outcome(data: bytes | memoryview, position: int) -> tuple[object, ...]:
    """Return the decoders' results at a position, in a comparable form."""
    error = corrupt_or_none(lambda: decode_record(data, position))
    if error is None:
        message = decode_record(data, position)
        touch_everything(message)
        decoded: object = bytes(message.raw)
    else:
        assert error.offset == position
        assert f"record at {position}" in str(error)
        decoded = str(error)
    return (
        decoded,
        check_record(data, position),
        check_record(data, position, check_property_crc=True),
    )


@given(st.data())
def test_i04_damaged_bytes_raise_corrupt_and_nothing_else(data: st.DataObject) -> None:
    records = data.draw(LOGS.filter(bool) | RUNS.filter(bool))
    log = bytearray(b"".join(records))
    starts = np.cumsum([0, *map(len, records[:-1])]).tolist()
    offsets = np.array(starts, dtype=np.int64)
    units = make_units(offsets, [len(record) for record in records], offsets)
    for _ in range(data.draw(st.integers(1, 4))):
        # Mostly lengths, magics and flags: what leads a decoder astray.
        start = data.draw(st.sampled_from(starts))
        field = data.draw(st.sampled_from([0, 4, 36, 84]) | st.integers(0, len(log)))
        at = min(start + field, len(log) - 1)
        log[at : at + 4] = data.draw(
            st.binary(min_size=1, max_size=4)
            | st.sampled_from([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x5b", bytes(4)])
        )
    log = log[: data.draw(st.integers(0, len(log)) | st.just(len(log)))]
    # The same bytes inside a larger buffer: bytes after the end must not matter.
    room = bytes(log) + b"\x00\x00\x00\x5b\xda\xa3\x20\xa7" * 40
    inside = memoryview(room)[: len(log)]
    positions = [*starts, data.draw(st.integers(-5, len(log) + 5))]
    for position in positions:
        assert outcome(bytes(log), position) == outcome(inside, position)

    walk = walk_records(inside)
    again = walk_records(bytes(log))
    assert walk.positions.tolist() == again.positions.tolist()
    assert walk[1:] == again[1:]
    position = 0
    scalar: list[int] = []
    while corrupt_or_none(lambda: layout.check_size(inside, position, len(inside))) is None:  # noqa: B023
        scalar.append(position)
        position += layout.check_size(inside, position, len(inside))
    assert walk.positions.tolist() == scalar
    assert walk.next_position == position
    bad = [at for at in scalar if isinstance(outcome(inside, at)[0], str)]
    error = corrupt_or_none(lambda: columns.record_columns(inside, walk.positions))
    assert (None if error is None else error.offset) == (bad[0] if bad else None)
    if error is None:
        found = columns.record_columns(inside, walk.positions)
        columns.check_bodies(inside, found)
        columns.index_keys(inside, found)
        columns.topics(inside, found)

    for base in (0, data.draw(I64)):
        split = split_messages(units, inside, buffer_offset=base)
        for message, index in zip(split.messages, split.indexes.tolist(), strict=True):
            assert message.size == units["size"][index]
            touch_everything(message)


@given(RUNS, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 7)), max_size=2, unique=True))
def test_the_first_bad_head_is_found_in_few_records_as_in_many(
    records: list[bytes], flips: list[tuple[int, int]]
) -> None:
    data = bytearray(b"".join(records))
    sizes = np.array(list(map(len, records)), np.int64)
    starts = np.cumsum(sizes) - sizes
    flipped = sorted(row for row, _ in flips if row < len(records))
    for row, at in flips:
        if row < len(records):
            data[int(starts[row]) + at] ^= 0x40
    bad = columns.find_bad_head(data, starts, sizes)
    singly = [
        columns.find_bad_head(data, starts[row : row + 1], sizes[row : row + 1])
        for row in range(len(records))
    ]
    found = [(row, *one[1:]) for row, one in enumerate(singly) if one is not None]
    assert bad == (found[0] if found else None)
    assert bad is None or bad[0] in flipped
    if flipped:
        assert bad is not None


@given(LOGS, st.integers(0, 2**63 - 10_000), st.data())
def test_split_gives_each_message_its_unit(
    records: list[bytes], base: int, data: st.DataObject
) -> None:
    sizes = list(map(len, records))
    offsets = base + np.cumsum([0, *sizes], dtype=np.int64)[:-1]
    units = make_units(offsets, sizes, offsets)
    cut = data.draw(st.integers(0, sum(sizes)))
    log = b"".join(records)
    split = split_messages(units, log[:cut], buffer_offset=base)
    whole = [row for row in range(len(sizes)) if sum(sizes[: row + 1]) <= cut]
    assert split.indexes.tolist() == whole
    assert [bytes(message.raw) for message in split.messages] == records[: len(whole)]
    assert split.units_seen == (len(whole) if cut else 0)
