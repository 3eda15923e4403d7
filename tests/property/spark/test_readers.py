"""After any history of a tier, the data source of Spark returns the same rows as a list in memory.
The tests cover options, pushed filters, batches and streams."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import Filter, GreaterThanOrEqual, In, LessThan

from tests.kit.histories import (
    COLUMNS,
    QueuePlan,
    Row,
    build,
    filters,
    histories,
    rows_of,
)
from tieredstore.errors import Corrupt
from tieredstore.spark.batch import PushDownReader, TieredBatchReader
from tieredstore.spark.options import parse_options
from tieredstore.spark.schema import Shape, spark_schema
from tieredstore.spark.stream.reader import TieredStreamReader

SHAPE = Shape.of(spark_schema(COLUMNS), None)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read(reader: TieredBatchReader) -> list[Row]:
    sent: TieredBatchReader = pickle.loads(pickle.dumps(reader))
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    return rows_of(batch for partition in partitions for batch in sent.read(partition))


def moment(time_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=time_ms)


def as_filters(chosen: dict[str, Any]) -> list[Filter]:
    made: dict[str, Callable[[Any], Filter]] = {
        "since_ms": lambda value: GreaterThanOrEqual(("store_timestamp",), moment(value)),
        "until_ms": lambda value: LessThan(("store_timestamp",), moment(value)),
        "from_offset": lambda value: GreaterThanOrEqual(("queue_offset",), value),
        "until_offset": lambda value: LessThan(("queue_offset",), value),
        "queue_ids": lambda value: In(("queue_id",), value),
        "tags": lambda value: In(("tags",), value),
    }
    return [made[name](value) for name, value in chosen.items() if name in made]


@settings(max_examples=15)
@given(st.data(), histories(), st.booleans())
def test_a_batch_gives_the_rows_of_a_plain_list_with_and_without_push_down(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    plans: list[QueuePlan],
    with_state: bool,
) -> None:
    history = build(tmp_path_factory.mktemp("history"), plans)
    chosen = data.draw(filters(plans))
    skip = data.draw(st.booleans())
    common = {"path": history.url, "subscribePattern": ".*", "maxPartitionBytes": "900"}
    if with_state:
        common["state"] = str(history.state)
    if skip:
        common |= {"onDamage": "skip", "failOnDataLoss": "false"}
    by_option = {
        option: str(chosen[name])
        for name, option in (("since_ms", "startingTimestamp"), ("until_ms", "endingTimestamp"))
        if chosen.get(name, -1) >= 0
    }
    if "tags" in chosen:
        by_option["tags"] = " || ".join(chosen["tags"])
    if "keys" in chosen:
        by_option["keys"] = json.dumps(chosen["keys"])
    taken = {"startingTimestamp": "since_ms", "endingTimestamp": "until_ms"}
    names = [taken.get(option, option) for option in by_option]
    wanted = history.rows(**{name: chosen[name] for name in names})
    try:
        found = read(TieredBatchReader(parse_options(common | by_option), SHAPE))
    except Corrupt:
        assert history.is_damaged
        assert not skip
    else:
        assert found == wanted
    pushed = PushDownReader(parse_options(common), SHAPE)
    rest = pushed.pushFilters(as_filters(chosen))
    assert list(rest) == as_filters(chosen)  # Spark applies them again
    without_keys = {name: value for name, value in chosen.items() if name != "keys"}
    right = history.rows(**without_keys)
    try:
        found = read(pushed)
    except Corrupt:
        assert history.is_damaged
        assert not skip
    else:
        places = {row.place for row in right}
        assert [row for row in found if row.place in places] == right
        assert set(found) <= set(history.all_rows)


@settings(max_examples=15)
@given(st.data(), histories())
def test_a_stream_gives_every_row_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, plans: list[QueuePlan]
) -> None:
    history = build(tmp_path_factory.mktemp("history"), plans)
    since_ms = data.draw(filters(plans)).get("since_ms", -1)
    options = {
        "path": history.url,
        "subscribePattern": ".*",
        "startingOffsets": "earliest",
        "listInterval": "0",
        "onDamage": "skip",
        "failOnDataLoss": "false",
        "maxOffsetsPerTrigger": str(data.draw(st.sampled_from([1, 5, 1000]))),
    }
    if since_ms >= 0:
        options["startingTimestamp"] = str(since_ms)
    reader = TieredStreamReader(parse_options(options), SHAPE)
    found: list[Row] = []
    start = json.loads(json.dumps(reader.initialOffset()))
    for _ in range(400):
        end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
        if end == start:
            break
        partitions = pickle.loads(pickle.dumps(reader.partitions(start, end)))
        sent: TieredStreamReader = pickle.loads(pickle.dumps(reader))
        found += rows_of(batch for partition in partitions for batch in sent.read(partition))
        start = end
    else:
        raise AssertionError("no end")
    reader.stop()
    found.sort(key=lambda row: row.place)
    if since_ms < 0:
        assert found == history.rows()
        return
    wanted = {row.place for row in history.rows(since_ms=since_ms)}
    assert [row for row in found if row.place in wanted] == history.rows(since_ms=since_ms)
    firsts = {(row.topic, row.queue_id): row for row in reversed(found)}
    assert len(found) == len(set(found))
    assert set(found) <= set(history.all_rows)
    for first in firsts.values():  # nothing before the first late one
        late = [r for r in history.rows(since_ms=since_ms) if r.place[:2] == first.place[:2]]
        assert not late or first.queue_offset <= late[0].queue_offset
