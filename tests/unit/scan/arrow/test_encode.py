"""Record batches are encoded as records and units. Rows that are not valid messages are
rejected."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tieredstore.errors import Invalid
from tieredstore.message.encoding import (
    BodyTooLarge,
    Message,
    PropertiesTooLarge,
    encode_record,
)
from tieredstore.message.hosts import encode_host
from tieredstore.message.record import decode_record
from tieredstore.message.sysflag import COMPRESSED
from tieredstore.scan.arrow.encode import EncodedBatch, encode_batch


def encode(columns: dict[str, Any], topic: str = "t", **options: Any) -> EncodedBatch:
    batch = columns if isinstance(columns, pa.RecordBatch) else pa.RecordBatch.from_pydict(columns)
    return encode_batch(
        batch, topic=topic, queue_id=1, queue_offset=5, physical_offset=70, **options
    )


def test_a_body_alone_is_a_new_message() -> None:
    found = encode({"body": [b"one", None]})
    one = encode_record(Message("t", b"one", queue_id=1), 5, 70, 0)
    assert bytes(found.records[: len(one)]) == one
    empty = decode_record(found.records, len(one))
    assert (bytes(empty.body), empty.queue_offset, empty.physical_offset) == (b"", 6, 70 + len(one))
    assert found.units.tolist() == [(70, len(one), 0), (70 + len(one), empty.size, 0)]
    assert found.next_physical_offset == 70 + len(found.records)


def test_no_message_is_no_byte() -> None:
    found = encode({"body": pa.array([], pa.binary())})
    assert (len(found.records), len(found.units), found.next_physical_offset) == (0, 0, 70)


def test_keys_tags_and_ids_become_properties_in_the_usual_order() -> None:
    found = encode(
        {
            "body": [b"a", b"b", b"c"],
            "keys": [["k1", "k2"], None, ["", "k3"]],
            "tags": ["A", None, ""],
            "msg_id": ["U1", "U2", None],
            "born_timestamp": pa.array([1, 2, None], pa.timestamp("ms", "UTC")),
            "born_host": ["1.2.3.4:5", "[::1]:9", None],
        }
    )
    messages = [
        Message.create("t", b"a", queue_id=1, keys=["k1", "k2"], tags="A", uniq_key="U1"),
        Message.create("t", b"b", queue_id=1, uniq_key="U2", born_host=("::1", 9)),
        Message.create("t", b"c", queue_id=1, keys=["k3"]),
    ]
    messages[0].born_host = encode_host("1.2.3.4", 5)
    expected = b""
    for n, message in enumerate(messages):
        message.born_timestamp_ms = [1, 2, 0][n]
        expected += encode_record(message, 5 + n, 70 + len(expected), 0)
    assert bytes(found.records) == expected
    assert found.units["tags_code"].tolist() == [m.tags_code for m in messages]


def test_maps_with_nulls_empty_values_and_slices() -> None:
    maps = pa.array(
        [[("x", "0")], None, [("TAGS", "A"), ("e", ""), ("TAGS", "B")], [], [("y", "é")]],
        pa.map_(pa.string(), pa.string()),
    )
    batch = pa.RecordBatch.from_pydict({"body": [b""] * 5, "properties": maps}).slice(1)
    found = encode(batch)
    positions = [int(unit["physical_offset"]) - 70 for unit in found.units]
    stored = [decode_record(found.records, at) for at in positions]
    assert [m.properties for m in stored] == [{}, {"TAGS": "B"}, {}, {"y": "é"}]
    assert [int(code) for code in found.units["tags_code"]] == [0, ord("B"), 0, 0]


def test_bodies_are_stored_as_given_so_no_flag_says_compressed() -> None:
    found = encode({"body": [b"plain"], "sys_flag": [COMPRESSED | 0x300 | 0x8]})
    assert decode_record(found.records).sys_flag == 0x8


MAPS = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"tags": ["x"]}, Invalid, "expected a column body"),
        ({"body": [b"12345"]}, BodyTooLarge, "row 0.*at most 4"),
        ({"body": [b""], "tags": ["\x02"]}, Invalid, "TAGS.*x02"),
        ({"body": [b""], "keys": [["a b"]]}, Invalid, "without spaces"),
        ({"body": [b""], "tags": ["x" * 32_768]}, PropertiesTooLarge, "32767"),
        ({"body": [b""], "flag": [1 << 40]}, Invalid, "column flag"),
        ({"body": [b""], "born_host": ["nowhere"]}, Invalid, "ip:port"),
        (
            {
                "body": [b""],
                "properties": pa.array([[("a\x01", "v")]], MAPS),
            },
            Invalid,
            "property name",
        ),
    ],
)
def test_what_cannot_be_a_message_is_refused(
    columns: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        encode(columns, max_body_bytes=4)


def test_a_topic_that_no_record_can_name_is_refused() -> None:
    with pytest.raises(Invalid, match="at most 32767 bytes"):
        encode({"body": [b""]}, topic="t" * 40_000)
