"""Tests of the JSON format of the metadata file: Java's files, missing values, and invalid
files."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt
from tieredstore.metadata.json_format import Limits, parse
from tieredstore.metadata.parts import Tables

LIMITS = Limits(max_segments=1_000)


def read(data: bytes | str, limits: Limits = LIMITS) -> Tables:
    return parse(data.encode() if isinstance(data, str) else data, "the file", limits)


def segment_json(**changes: object) -> dict[str, Any]:
    return {
        "path": "b/T/0",
        "type": 0,
        "baseOffset": 0,
        "status": 0,
        "size": 270,
        "createTimestamp": 1,
        "beginTimestamp": 2,
        "endTimestamp": 3,
        "sealTimestamp": 0,
    } | changes


def file_json(segment: dict[str, Any] | None = None, **changes: object) -> dict[str, Any]:
    return {
        "commitLogFileSegmentTable": {"b/T/0": {"0": segment or segment_json()}},
        "consumeQueueFileSegmentTable": {},
        "indexFileSegmentTable": {},
        "queueMetadataTable": {
            "T": {
                "0": {
                    "queue": {"brokerName": "b", "queueId": 0, "topic": "T"},
                    "minOffset": -1,
                    "maxOffset": -1,
                    "updateTimestamp": 5,
                }
            }
        },
        "topicMetadataTable": {
            "T": {"topicId": 0, "topic": "T", "status": 0, "reserveTime": -1, "updateTimestamp": 6}
        },
        "topicSerialNumber": 0,
    } | changes


def java_files(golden: Path, public_a: Path) -> list[Path]:
    return [
        golden / "java-5.3.3/config/tieredStoreMetadata.json",
        golden / "java-5.3.3/config/tieredStoreMetadata.json.bak",
        golden / "java-5.5.0/config/tieredStoreMetadata.json",
        golden / "java-5.5.0/config/tieredStoreMetadata.json.bak",
        public_a / "store/config/tieredStoreMetadata.json",
    ]


class TestJavaFiles:
    def test_files_of_both_java_versions_are_read(self, golden: Path, public_a: Path) -> None:
        for path in java_files(golden, public_a):
            assert read(path.read_bytes()).segment_count > 0, path

    def test_the_worked_example_is_read(self, golden: Path) -> None:
        tables = read((golden / "java-5.5.0/config/tieredStoreMetadata.json").read_bytes())
        commit_log = tables.segments[FileSegmentType.COMMIT_LOG]["broker-a/TopicA/3"]
        assert sorted((base, row.value.size) for base, row in commit_log.items()) == [
            (0, 270),
            (270, 270),
            (540, 135),
        ]
        assert commit_log[0].value.begin_timestamp_ms == 1_700_000_000_000
        assert tables.topics["TopicA"].value.topic_id == tables.topic_serial == 0
        assert tables.queues["TopicA"][3].value.broker_name == "broker-a"
        index = SegmentId("broker-a/rmq_sys_INDEX/0", FileSegmentType.INDEX, 0)
        row = tables.segment(index)
        assert row is not None
        assert row.value.size == 200

    def test_what_is_written_is_strict_json_in_javas_order(
        self, golden: Path, public_a: Path
    ) -> None:
        for path in java_files(golden, public_a):
            tables = read(path.read_bytes())
            encoded = tables.encode()
            content = json.loads(encoded)
            assert list(content) == [
                "commitLogFileSegmentTable",
                "consumeQueueFileSegmentTable",
                "indexFileSegmentTable",
                "queueMetadataTable",
                "topicMetadataTable",
                "topicSerialNumber",
            ]
            assert read(encoded).encode() == encoded
            # the same tokens in the same order as Java's, but for quotes and white space
            squeezed = "".join(path.read_text().split()).replace('"', "")
            assert encoded.decode().replace('"', "") == squeezed

    def test_integer_keys_are_bare_outside_strings_only(self) -> None:
        text = json.dumps(file_json(x={'{0:{1:2},"3:"': 'a{4:\\",5:'}))
        text = text.replace('"0":', " 0 :")
        tables = read(text)
        assert tables.segment_count == 1
        assert orjson.loads(tables.encode())["x"] == {'{0:{1:2},"3:"': 'a{4:\\",5:'}

    def test_paths_of_windows_are_read(self) -> None:
        content = file_json(segment_json(path="b\\T\\0"))
        content["commitLogFileSegmentTable"] = {
            "b\\T\\0": content["commitLogFileSegmentTable"]["b/T/0"]
        }
        tables = read(orjson.dumps(content))
        row = tables.segment(SegmentId("b/T/0", FileSegmentType.COMMIT_LOG, 0))
        assert row is not None
        assert row.value.path == "b/T/0"


class TestValues:
    def test_a_missing_serial_number_is_zero(self) -> None:
        content = file_json()
        del content["topicSerialNumber"]
        content["topicMetadataTable"] = {}
        assert read(orjson.dumps(content)).topic_serial == 0
        assert read("{}").topic_serial == 0
        assert read('{"topicSerialNumber":-1}').topic_serial == -1

    def test_a_serial_number_below_a_topic_id_is_raised_to_it(self) -> None:
        content = file_json()
        content["topicMetadataTable"]["T"]["topicId"] = 7
        assert read(orjson.dumps(content)).topic_serial == 7

    def test_missing_fields_get_javas_defaults(self) -> None:
        content = file_json()
        content["commitLogFileSegmentTable"] = {"b/T/0": {"5": {}}}
        content["queueMetadataTable"] = {"T": {"1": {}}}
        content["topicMetadataTable"] = {"T": {}}
        tables = read(orjson.dumps(content))
        segment = tables.segments[FileSegmentType.COMMIT_LOG]["b/T/0"][5].value
        assert (segment.path, segment.base_offset, segment.size) == ("b/T/0", 5, 0)
        assert segment.begin_timestamp_ms == NEVER_WRITTEN_MS
        assert tables.queues["T"][1].value.max_offset == -1
        assert tables.topics["T"].value.reserve_time_hours == -1

    def test_null_tables_are_empty(self) -> None:
        assert read('{"commitLogFileSegmentTable":null}').segment_count == 0

    def test_unknown_tables_and_fields_are_written_back(self) -> None:
        content = file_json(
            segment_json(checksum={"b": [1, 2.5, None]}),
            futureTable={"z": 2**70, "a": ["é", "\ud800"]},
            aTable=[],
        )
        content["topicMetadataTable"]["T"]["owner"] = "x"
        content["queueMetadataTable"]["T"]["0"]["lag"] = 3
        data = json.dumps(content).encode()
        again = json.loads(read(data).encode())
        assert again == content
        assert list(again) == sorted(again)
        assert list(again["commitLogFileSegmentTable"]["b/T/0"]["0"])[-1] == "checksum"

    @given(
        st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\\")),
            st.integers(0, 2**63 - 1),
            max_size=5,
        )
    )
    def test_any_path_is_read_back(self, paths: dict[str, int]) -> None:
        content = file_json()
        content["indexFileSegmentTable"] = {
            path: {str(base): segment_json(path=path, type=2, baseOffset=base)}
            for path, base in paths.items()
        }
        data = orjson.dumps(content)
        tables = read(data)
        assert tables.encode() == data
        found = {
            path: next(iter(rows)) for path, rows in tables.segments[FileSegmentType.INDEX].items()
        }
        assert found == paths


def changed(**changes: object) -> str:
    return json.dumps(file_json(segment_json(**changes)))


DEEP = '{"x":' + "[" * 100_000 + "]" * 100_000 + "}"
BAD_FILES: dict[str, str | bytes] = {
    "nothing": "",
    "white space": " \n",
    "no object": "[]",
    "a number": "5",
    "truncated": json.dumps(file_json())[:-20],
    "trailing": json.dumps(file_json()) + "x",
    "zeros": "\0" * 1000,
    "not UTF-8": b'{"x":"\xff"}',
    "UTF-16": json.dumps(file_json()).encode("utf-16"),
    "NaN": changed(size=float("nan")),
    "infinity": '{"x":Infinity}',
    "huge float": '{"x":1e999}',
    "deep": DEEP,
    "deeper than the limit": '{"x":' + "[" * 40 + "]" * 40 + "}",
    "a table that is a list": '{"commitLogFileSegmentTable":[]}',
    "a path that is a list": '{"commitLogFileSegmentTable":{"b/T/0":[]}}',
    "a segment that is a number": '{"commitLogFileSegmentTable":{"b/T/0":{"0":1}}}',
    "a duplicated table": '{"topicSerialNumber":1,"topicSerialNumber":2}',
    "a duplicated segment": '{"commitLogFileSegmentTable":{"b/T/0":{"0":{},"0":{}}}}',
    "a key bare and quoted": '{"commitLogFileSegmentTable":{"b/T/0":{0:{},"0":{}}}}',
    "a path twice": '{"commitLogFileSegmentTable":{"b/T/0":{"0":{}},"b\\\\T\\\\0":{"5":{}}}}',
    "a negative size": changed(size=-1),
    "a size of text": changed(size="5"),
    "a size of truth": changed(size=True),
    "a size with a fraction": changed(size=1.5),
    "a size past 63 bits": changed(size=2**63),
    "a number of 5,000 digits": '{"topicSerialNumber":' + "9" * 5_000 + "}",
    "another base offset": changed(baseOffset=1),
    "another path": changed(path="b/T/1"),
    "another type": changed(type=2),
    "a path that is no text": changed(path=5),
    "half a surrogate": '{"commitLogFileSegmentTable":{"\\ud800":{"0":{}}}}',
    "a negative key": '{"commitLogFileSegmentTable":{"b/T/0":{-1:{}}}}',
    "a padded key": '{"commitLogFileSegmentTable":{"b/T/0":{"00":{}}}}',
    "a key of text": '{"commitLogFileSegmentTable":{"b/T/0":{"x":{}}}}',
    "a key past 63 bits": '{"commitLogFileSegmentTable":{"b/T/0":{"9223372036854775808":{}}}}',
    "a queue id past 31 bits": '{"queueMetadataTable":{"T":{"2147483648":{}}}}',
    "another queue": '{"queueMetadataTable":{"T":{"1":{"queue":{"queueId":2,"topic":"T"}}}}}',
    "another topic": '{"topicMetadataTable":{"T":{"topic":"U"}}}',
    "a queue that is a list": '{"queueMetadataTable":{"T":{"1":{"queue":[]}}}}',
    "serial below minus one": '{"topicSerialNumber":-2}',
}


class TestBadFiles:
    @pytest.mark.parametrize("name", BAD_FILES)
    def test_i01_a_bad_file_is_corrupt_and_named(self, name: str) -> None:
        with pytest.raises(Corrupt, match="the file") as caught:
            read(BAD_FILES[name])
        assert len(str(caught.value)) < 400

    def test_i01_every_truncation_is_noticed(self, golden: Path) -> None:
        data = (golden / "java-5.5.0/config/tieredStoreMetadata.json").read_bytes()
        for length in range(0, len(data.rstrip()), 7):
            with pytest.raises(Corrupt):
                read(data[:length])

    def test_i01_too_many_segments_are_refused(self) -> None:
        rows = {str(base): segment_json(baseOffset=base) for base in range(20)}
        data = orjson.dumps({"commitLogFileSegmentTable": {"b/T/0": rows}})
        assert read(data, Limits(max_segments=20)).segment_count == 20
        with pytest.raises(Corrupt, match="more than 19 segments"):
            read(data, Limits(max_segments=19))

    @given(st.binary(max_size=200))
    def test_i01_any_bytes_are_read_or_refused(self, data: bytes) -> None:
        with contextlib.suppress(Corrupt):
            read(data)

    @given(st.data())
    def test_l06_any_changed_byte_is_read_or_refused(self, data: st.DataObject) -> None:
        original = json.dumps(file_json()).encode()
        position = data.draw(st.integers(0, len(original) - 1))
        flipped = bytearray(original)
        flipped[position] ^= 1 << data.draw(st.integers(0, 7))
        try:
            tables = read(bytes(flipped))
        except Corrupt:
            return
        read(tables.encode())
