"""Record batches have the values that the scalar decoder finds, and are encoded back to the same
bytes."""

from __future__ import annotations

from datetime import datetime

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tests.kit.arrow_rows import MOST_MS, TIMES, rows_of, stored_row
from tests.kit.record_forms import compress
from tests.kit.strategies import HOST, I64, MESSAGE, PROPERTIES, TEXT, TOPIC
from tieredstore.message.columns.records import record_columns
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.properties import encode_properties
from tieredstore.message.sysflag import COMPRESSED, CompressionType, set_compression
from tieredstore.scan.arrow.columns import ArrowColumns, find_compressed_rows
from tieredstore.scan.arrow.encode import encode_batch
from tieredstore.scan.arrow.schema import TYPES, schema
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.read.batch import MessageBatch

SPACES = st.text(st.sampled_from(" \tab\u3000é"), max_size=6)
NAMED = st.dictionaries(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "x"]), SPACES)
RAW = st.lists(
    st.sampled_from([b"KEYS", b"TAGS", b"\x01", b"\x02", b"a b", b" ", b"\xff\xfe", b"\xe2\x82"]),
    max_size=12,
).map(b"".join)


@st.composite
def stored_messages(draw: st.DrawFn) -> Message:
    message = draw(MESSAGE)
    message.properties = draw(
        PROPERTIES.map(encode_properties) | NAMED.map(encode_properties) | RAW
    )
    message.sys_flag &= ~COMPRESSED
    if draw(st.booleans()) and message.body:
        kind = draw(st.sampled_from(CompressionType))
        message.body = compress(message.body, kind)
        message.sys_flag = set_compression(message.sys_flag, kind)
    return message


@given(TOPIC, st.lists(st.tuples(stored_messages(), HOST, I64), min_size=1, max_size=12), I64)
def test_every_column_is_what_the_scalar_decoder_says(
    topic: str, items: list[tuple[Message, bytes, int]], first: int
) -> None:
    records, positions = b"", []
    for number, (message, store_host, time) in enumerate(items):
        message.topic = topic
        positions.append(len(records))
        offset = first if number == 0 else len(records)
        records += encode_record(message, number, offset, time, store_host=store_host)
    queue = QueueFiles("broker-ä", topic, 3)
    columns = record_columns(records, np.array(positions))
    numbers = np.arange(len(items))
    batch = MessageBatch(queue, memoryview(records), 0, numbers, numbers, columns)
    messages = list(batch.messages())
    packed = find_compressed_rows(batch)
    inflated = [bytes(messages[row].decode_body()) for row in np.flatnonzero(packed)]

    found = ArrowColumns(batch, inflated).record_batch(tuple(TYPES))

    found.validate(full=True)
    assert found.schema == schema(TYPES)
    assert rows_of(found) == [stored_row(m, "broker-ä") for m in messages]
    half = batch.rows(np.arange(len(items)) % 2 == 0)
    names = tuple(name for name in TYPES if name not in {"body", "body_length"})
    expected = [stored_row(m, "broker-ä") for m in half.messages()]
    assert rows_of(ArrowColumns(half).record_batch(names)) == [
        {name: row[name] for name in names} for row in expected
    ]


LIKE_NAMES = st.lists(
    st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "UNIQ", "UNIQ_KEX", "KEYS2", "TAG", "WAIT"]),
    min_size=1,
    max_size=5,
)


@st.composite
def rows_alike(draw: st.DrawFn) -> list[bytes]:
    """Draw rows of properties as one producer writes them. All rows have the same names in the same
    order, except that some rows have one different name."""
    names = draw(LIKE_NAMES)
    values = st.sampled_from(["a", "b c", "", "é", "KEYS", "TAGS"])
    end = draw(st.sampled_from(["\x02", ""]))
    rows: list[str] = []
    for _ in range(draw(st.integers(1, 6))):
        own = list(names)
        if rows and draw(st.integers(0, 3)) == 0:
            own[draw(st.integers(0, len(own) - 1))] = draw(st.sampled_from([*names, "WAIT"]))
        rows.append("\x02".join(f"{name}\x01{draw(values)}" for name in own) + end)
    return [row.encode() for row in rows]


@given(rows_alike())
@example([b"UNIQ_KEX\x01a\x02KEYS\x01b\x02"] * 2)
@example([b"TAGS\x01a\x02WAIT\x01b", b"TAGS\x01c\x02TAGS\x01d"])
@example([b"TAGS\x01a\x02x\x01b\x02x\x01c\x02TAGS\x01d", b"x\x01e\x02x\x01f"])
def test_records_of_one_pattern_are_what_the_scalar_decoder_says(rows: list[bytes]) -> None:
    records, positions = b"", []
    for number, properties in enumerate(rows):
        positions.append(len(records))
        message = Message("T", b"body", properties=properties)
        records += encode_record(message, number, len(records), 1_000)
    numbers = np.arange(len(rows))
    columns = record_columns(records, np.array(positions))
    batch = MessageBatch(QueueFiles("b", "T", 0), memoryview(records), 0, numbers, numbers, columns)
    expected = [stored_row(message, "b") for message in batch.messages()]

    found = rows_of(ArrowColumns(batch).record_batch(tuple(TYPES)))

    assert found == expected


@st.composite
def new_messages(draw: st.DrawFn) -> Message:
    return Message.create(
        "",
        draw(st.binary(max_size=60)),
        queue_id=7,
        properties=draw(PROPERTIES),
        flag=draw(st.integers(-(2**31), 2**31 - 1)),
        sys_flag=draw(st.sampled_from([0, 0x2, 0x4, 0xC0])),
        born_timestamp_ms=draw(st.integers(-MOST_MS, MOST_MS)),
        reconsume_times=draw(st.integers(0, 2**31 - 1)),
    )


@given(
    TEXT | st.text("ü", min_size=60, max_size=70),
    st.lists(st.tuples(new_messages(), HOST, HOST), min_size=1, max_size=12),
    st.integers(0, 2**40),
    st.integers(0, 2**40),
)
def test_batches_encode_to_the_bytes_of_the_scalar_encoder(
    topic: str, items: list[tuple[Message, bytes, bytes]], offset: int, position: int
) -> None:
    records, positions, tags_codes = b"", [], []
    for number, (message, born_host, store_host) in enumerate(items):
        message.topic, message.born_host = topic, born_host
        positions.append(len(records))
        records += encode_record(
            message, offset + number, position + len(records), 1_000 + number, store_host=store_host
        )
        tags_codes.append(message.tags_code)
    columns = record_columns(records, np.array(positions))
    numbers = np.arange(len(items))
    decoded = MessageBatch(
        QueueFiles("b", topic, 7), memoryview(records), position, numbers, numbers, columns
    )
    batch = ArrowColumns(decoded).record_batch(tuple(TYPES))

    found = encode_batch(
        batch, topic=topic, queue_id=7, queue_offset=offset, physical_offset=position
    )

    assert bytes(found.records) == records
    assert found.units["physical_offset"].tolist() == [position + at for at in positions]
    assert found.units["size"].tolist() == columns.sizes.tolist()
    assert found.units["tags_code"].tolist() == tags_codes
    assert found.next_physical_offset == position + len(records)


def test_times_within_the_calendar_are_datetimes() -> None:
    record = encode_record(Message("T", b"", born_timestamp_ms=1_700_000_000_123), 0, 0, -1)
    columns = record_columns(record, np.array([0]))
    batch = MessageBatch(
        QueueFiles("b", "T", 0), memoryview(record), 0, np.zeros(1, int), np.zeros(1, int), columns
    )
    [row] = ArrowColumns(batch).record_batch(TIMES).to_pylist()
    assert row["born_timestamp"] == datetime.fromisoformat("2023-11-14T22:13:20.123Z")
    assert row["store_timestamp"] == datetime.fromisoformat("1969-12-31T23:59:59.999Z")
