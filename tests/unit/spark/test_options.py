"""Options of the data source are parsed from strings, as users write them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tieredstore.errors import Invalid
from tieredstore.scan.arrow.schema import DEFAULT_COLUMNS
from tieredstore.scan.time_search.modes import SearchTimes
from tieredstore.spark.offsets import EARLIEST, LATEST
from tieredstore.spark.options import SourceOptions, parse_options, tier_url

PLACE = {"path": "file:///tier", "subscribe": "orders"}


def parsed(**options: str) -> SourceOptions:
    return parse_options({**PLACE, **options})


def test_defaults() -> None:
    found = parsed()
    assert found.url == "file:///tier"
    assert found.topics == ("orders",)
    assert (found.starting, found.ending, found.columns) == (None, None, None)
    assert found.fail_on_data_loss
    assert not found.skips_damage
    assert found.min_partitions == 1
    assert found.max_partition_bytes == 192 << 20
    assert found.read.tags is None


def test_names_have_no_case() -> None:
    found = parse_options({"PATH": "/t", "SubScribe": "a, b", "MAXPARTITIONBYTES": "64m"})
    assert found.url == "file:///t"
    assert found.topics == ("a", "b")
    assert found.max_partition_bytes == 64 << 20


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("/data/tier", "file:///data/tier"),
        ("file:/data/tier", "file:///data/tier"),
        ("file:///data/tier", "file:///data/tier"),
        ("s3a://bucket/p?region=r", "s3://bucket/p?region=r"),
        ("s3://bucket/p", "s3://bucket/p"),
        ("fsspec+sftp://host/p", "fsspec+sftp://host/p"),
    ],
)
def test_paths_as_sparks_users_write_them(path: str, url: str) -> None:
    assert tier_url(path) == url


def test_offsets_and_times() -> None:
    text = '{"orders": {"broker-a": {"0": 7, "1": -2}}}'
    found = parsed(startingOffsets=text, endingOffsets="latest")
    assert found.starting is not None
    assert found.starting.of(("orders", "broker-a", 0)) == 7
    assert found.starting.of(("orders", "broker-a", 1)) == EARLIEST
    assert found.starting.of(("orders", "broker-a", 2)) == EARLIEST
    assert found.ending is not None
    assert found.ending.of(("orders", "broker-a", 0)) == LATEST
    # As Kafka's source: a time is taken before offsets.
    found = parsed(startingOffsets=text, startingTimestamp="1970-01-01T00:00:01Z")
    assert found.starting is not None
    assert found.starting.time_ms == 1000


def test_offsets_by_timestamp_are_taken_before_offsets() -> None:
    known, other = ("orders", "b", 0), ("orders", "b", 1)
    times = '{"orders": {"b": {"0": 1000}}}'
    found = parsed(startingOffsetsByTimestamp=times, startingOffsets="latest").starting
    assert found is not None
    assert (found.time_of(known), found.time_of(other), found.of(other)) == (1000, None, LATEST)
    found = parsed(endingOffsetsByTimestamp=times).ending
    assert found is not None
    assert (found.time_of(known), found.of(other)) == (1000, LATEST)
    found = parsed(startingOffsetsByTimestamp=times, startingTimestamp="2000").starting
    assert found is not None
    assert (found.time_of(known), found.time_of(other)) == (2000, 2000)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("500ms", 500), ("10s", 10_000), ("15 min", 900_000), ("1h", 3_600_000)],
)
def test_durations(text: str, ms: int) -> None:
    found = parsed(listInterval=text, maxTriggerDelay=text)
    assert (found.list_interval_ms, found.max_trigger_delay_ms) == (ms, ms)


def test_columns() -> None:
    assert parsed(columns="queue_id,body").columns == ("queue_id", "body")
    assert parsed(includeProperties="true").columns == (*DEFAULT_COLUMNS, "properties")
    assert parsed(includeProperties="false").columns is None
    both = parsed(columns="body", includeProperties="true")
    assert both.columns == ("body", "properties")


def test_a_repr_shows_no_secret() -> None:
    secret = '{"objectStoreSecretKey": "hush", "tieredStoreFsspecOptions": "hush"}'
    options = parsed(path="s3://b/p?option.password=hush", properties=secret)
    assert "hush" in options.properties["objectStoreSecretKey"]
    assert "hush" not in repr(options)


def test_how_to_read() -> None:
    found = parsed(tags="a || b", keys="k", batchBytes="2m", checkBodies="false", onDamage="SKIP")
    assert (found.read.tags, found.read.keys) == (("a", "b"), ("k",))
    assert (found.read.batch_bytes, found.read.body_crcs) == (2 << 20, False)
    assert found.skips_damage
    assert not found.read.verify_records
    assert parsed(verifyRecords="true").read.verify_records
    assert found.search_times is SearchTimes.EXACT
    assert parsed(searchTimes="SAMPLED").search_times is SearchTimes.SAMPLED
    with pytest.raises(Invalid, match="searchTimes: expected exact or sampled, found 'true'"):
        parsed(searchTimes="true")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscrib": "x"}, "no option 'subscrib'; did you mean subscribe"),
        ({"assign": "{}"}, "expected one of subscribe, subscribePattern and assign, found subs"),
        ({"startingOffsets": "7"}, "startingOffsets: expected a JSON object by topic"),
        ({"startingOffsets": "{"}, "startingOffsets: not JSON"),
        ({"startingOffsets": '{"t": 7}'}, "startingOffsets: t: expected an object by brokers"),
        ({"startingOffsets": '{"t": {"b": 7}}'}, "t: b: expected an object by queues"),
        ({"startingOffsets": '{"t": {"b": {"x": 7}}}'}, "expected a queue id, found 'x'"),
        ({"startingOffsets": '{"t": {"b": {"0": true}}}'}, "expected an offset, found True"),
        ({"endingOffsets": '{"t": {"b": {"0": -3}}}'}, "endingOffsets: b/t/0: expected an offset"),
        ({"startingTimestamp": "soon"}, "time 'soon'"),
        ({"minPartitions": "0"}, "minPartitions: expected a number above 0, found '0'"),
        ({"listInterval": "soon"}, "listInterval: expected a duration such as 10s"),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "2"}, "at most maxOffsetsPerTri"),
        ({"startingOffsetsByTimestamp": '{"t": {"b": {"0": -1}}}'}, "expected epoch milliseconds"),
        ({"maxPartitionBytes": "big"}, "maxPartitionBytes: expected bytes above 0"),
        ({"batchBytes": "2g"}, "batchBytes): expected at most 1073741824, found 2147483648"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss: expected true or false, found 'no'"),
        ({"onDamage": "drop"}, "onDamage: expected fail or skip, found 'drop'"),
        ({"columns": "bod"}, "no column 'bod' in a message. Did you mean body"),
        ({"columns": "body,body"}, "one is named twice"),
        ({"tags": " || "}, "tags: expected a tag"),
        ({"tags": ""}, "tags: expected a tag"),
        ({"keys": ""}, "keys: expected a key"),
        ({"keys": "[1]"}, "keys: expected a key, or keys as JSON"),
        ({"properties": "a=b"}, "properties: expected JSON"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(Invalid) as raised:
        parsed(**options)
    assert message in str(raised.value)


def test_without_a_path_the_advice_is_a_temporary_view() -> None:
    with pytest.raises(Invalid, match="TEMPORARY VIEW"):
        parse_options({"subscribe": "orders"})
    with pytest.raises(Invalid, match="TEMPORARY VIEW"):  # what a table of the catalogue gives
        parse_options({"path": "/t", "location": "/t", "option.subscribe": "orders"})


def test_queues_are_always_chosen() -> None:
    with pytest.raises(Invalid, match=r"found none; subscribePattern '\.\*' is all topics"):
        parse_options({"path": "/t"})


def test_assigned_queues() -> None:
    options = {"path": "/t", "assign": '{"orders": {"b": [0, 2]}}'}
    expected = frozenset({("orders", "b", 0), ("orders", "b", 2)})
    assert parse_options(options).assigned == expected
    for wrong in ('{"orders": {"b": 0}}', '{"orders": {"b": ["0"]}}', "{}", '{"orders": []}'):
        with pytest.raises(Invalid, match="assign: "):
            parse_options({"path": "/t", "assign": wrong})


def test_settings_of_s3a_are_named_as_ignored(caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {"fs.s3a.endpoint": "x", "fs.s3a.Access.key": "SECRET"}
    with caplog.at_level(logging.WARNING):
        parsed(**settings)
    assert "ignores fs.s3a.access.key, fs.s3a.endpoint" in caplog.text
    assert "SECRET" not in caplog.text
