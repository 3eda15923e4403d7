"""An invalid message raises an error that names the file, row group, row and column. Nothing is
written."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.jobs.backfill import (
    BROKER,
    CLUSTER,
    START_MS,
    backfill_target,
    fill,
    messages,
    new_run,
    tier_at,
)
from tieredstore.errors import Invalid
from tieredstore.jobs.backfilling.job import run_backfill
from tieredstore.jobs.backfilling.measure import measure, measure_tasks
from tieredstore.jobs.backfilling.plan import QueueStart, pieces_of, queue_plans
from tieredstore.jobs.backfilling.rows import RowRules
from tieredstore.jobs.backfilling.table_files import list_table
from tieredstore.jobs.backfilling.write import write, write_task
from tieredstore.jobs.options import BackfillOptions
from tieredstore.scan.location import TierLocation

PLACE = r"table\.parquet, row group 1, row 2"


def with_value(name: str, value: Any, type: pa.DataType | None = None) -> pa.Table:
    """Return 20 messages in row groups of 10, one of which has the given value."""
    table = messages(20)
    values = table[name].to_pylist() if name in table.column_names else [None] * 20
    values[12] = value
    kind = type or (table.schema.field(name).type if name in table.column_names else None)
    column = pa.array(values, kind)
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (with_value("body", None), f"{PLACE}, column body: expected binary, found null"),
        (with_value("topic", None), f"{PLACE}, column topic: expected string, found null"),
        (with_value("queue_id", None), f"{PLACE}, column queue_id: expected int32, found null"),
        (with_value("queue_id", -1), f"{PLACE}, column queue_id: expected 0 or more, found -1"),
        (
            with_value("queue_id", 1 << 31, pa.int64()),
            f"{PLACE}, column queue_id: expected int32, found 2147483648",
        ),
        (
            with_value("queue_offset", None),
            f"{PLACE}, column queue_offset: expected one for each message of queue orders/0",
        ),
        (
            with_value("queue_offset", 11),
            f"{PLACE}, column queue_offset: expected 12 in queue orders/0: it is in .*row 1",
        ),
        (
            with_value("queue_offset", 50),
            "row 3, column queue_offset: expected 12 in queue orders/0: found 13",
        ),
        (
            with_value("store_timestamp", START_MS + 3),
            f"{PLACE}, column store_timestamp: .*least {START_MS + 11} ms.*found {START_MS + 3}",
        ),
        (
            with_value("store_timestamp", -1),
            f"{PLACE}, column store_timestamp: expected 0 or more, found -1",
        ),
        (with_value("topic", "a/b"), f"{PLACE}, column topic: 'a/b': expected 1 to 255 letters"),
        (with_value("topic", ".."), f"{PLACE}, column topic"),
        (with_value("topic", ""), f"{PLACE}, column topic"),
        (with_value("topic", "x" * 256), f"{PLACE}, column topic: .*found 256 bytes"),
        (with_value("topic", "x" * 40_000), f"{PLACE}, column topic: .*found 40000 bytes"),
        (with_value("topic", "rmq_sys_INDEX"), f"{PLACE}, column topic: .*system topics"),
        (with_value("topic", "SCHEDULE_TOPIC_XXXX"), f"{PLACE}, column topic: .*system topics"),
        (with_value("topic", BROKER), f"{PLACE}, column topic: .*another name"),
        (with_value("topic", CLUSTER), f"{PLACE}, column topic: .*another name"),
        (
            with_value("body", b"x" * ((4 << 20) + 1)),
            f"{PLACE}: .*body of at most 4194304 bytes.*found 4194305",
        ),
        (with_value("tags", "y" * 33_000), f"{PLACE}: .*at most 32767 bytes, found 33"),
        (with_value("tags", "a\x02b"), rf"{PLACE}: value of TAGS: expected text without \\x02"),
        (with_value("keys", ["a b"]), f"{PLACE}: keys of a message: expected texts without spaces"),
        (with_value("born_host", "nowhere"), f"{PLACE}: host: expected ip:port, found 'nowhere'"),
        (with_value("sys_flag", 1 << 40, pa.int64()), f"{PLACE}, column sys_flag: expected int32"),
        (
            with_value("body_length", 7, pa.int32())
            .drop_columns("body_length")
            .append_column("body_length", pa.array([len("body 10 of 0")] * 20, pa.int32())),
            r"row group 0, row 0, column body_length: expected 11, as body has, found 12",
        ),
        (
            messages(20).drop_columns("body"),
            r"table\.parquet: expected a column body, found none",
        ),
        (
            messages(20).drop_columns("topic"),
            r"table\.parquet: expected a column topic \(or --topic NAME\), found none",
        ),
        (
            messages(20).drop_columns("body").append_column("body", pa.array(range(20))),
            r"table\.parquet: column body: expected binary, found int64",
        ),
        (
            messages(20).drop_columns("keys").append_column("keys", pa.array(["k"] * 20)),
            r"table\.parquet: column keys: expected list<.*string>, found string",
        ),
        (
            messages(20).append_column("born_timestamp", pa.array([dt.date(2020, 1, 1)] * 20)),
            r"column born_timestamp: expected a timestamp or epoch ms, found date32",
        ),
        (
            messages(20).append_column("broker", pa.array(["b1", "b2"] * 10)),
            "expected messages of one broker, found those of b1, b2",
        ),
    ],
    ids=range(32),
)
def test_a_table_that_is_no_messages(table: pa.Table, expected: str, tmp_path: Path) -> None:
    """A table whose columns or values are not those of messages is rejected before anything is
    written."""
    path = tmp_path / "table.parquet"
    pq.write_table(table, path, row_group_size=10)
    with pytest.raises(Invalid, match=expected):
        both_passes(str(path), tier_at(tmp_path))


def both_passes(table: str, tier: TierLocation) -> None:
    files = list_table(table)
    rules = RowRules(None, 4, START_MS, BROKER, CLUSTER)
    plans = queue_plans(list(map(measure, measure_tasks(table, files, rules, 1))), files)
    assert "body_length" in files[0].columns
    pieces = list(pieces_of(plans[0], BROKER, QueueStart(0, 0), 1 << 20))
    write(write_task(table, files, rules, tier, pieces))


def test_columns_of_other_names_are_not_looked_at(tmp_path: Path) -> None:
    table = messages(5).append_column("price", pa.array([object.__name__] * 5))
    assert fill(tmp_path, table)["messages"] == 5


def test_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    pq.write_table(messages(5), folder / "a.parquet")
    pq.write_table(messages(5, first=5).drop_columns("tags"), folder / "b.parquet")
    with pytest.raises(Invalid, match=r"b\.parquet: expected the columns of a\.parquet.*in tags"):
        run_backfill(new_run(), tier_at(tmp_path), str(folder))


def test_places_that_are_no_table(tmp_path: Path) -> None:
    tier = tier_at(tmp_path)
    with pytest.raises(Invalid, match=r"cannot read .*nowhere"):
        run_backfill(new_run(), tier, str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(Invalid, match="no Parquet file there"):
        run_backfill(new_run(), tier, str(tmp_path / "empty"))
    (tmp_path / "text.parquet").write_text("a,b")
    with pytest.raises(Invalid, match=r"text\.parquet: expected a Parquet file"):
        run_backfill(new_run(), tier, str(tmp_path / "text.parquet"))
    with pytest.raises(Invalid, match="expected a path, file:// or s3://"):
        run_backfill(new_run(), tier, "ftp://host/table")


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="queues: expected at least 1, found 0"):
        fill(tmp_path, messages(1), BackfillOptions(queues=0))
    with pytest.raises(Invalid, match="segment bytes: expected at least 1, found 0"):
        fill(tmp_path, messages(1), BackfillOptions(segment_bytes=0))
    with pytest.raises(Invalid, match="give --cluster"):
        backfill_target(f"file://{tmp_path}/tier", tmp_path / "state", broker="b")
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match="not a directory"):
        backfill_target(f"file://{tmp_path}/tier", tmp_path / "file", cluster="c", broker="b")


def test_a_tier_and_a_state_that_do_not_belong_together(tmp_path: Path) -> None:
    fill(tmp_path, messages(5))
    other = backfill_target(
        f"file://{tmp_path}/tier", tmp_path / "other", cluster=CLUSTER, broker=BROKER
    )
    with pytest.raises(Invalid, match="rebuild the metadata"):
        fill(tmp_path, messages(5, first=5), tier=other, name="more")
    elsewhere = backfill_target(
        f"file://{tmp_path}/elsewhere", tmp_path / "state", cluster=CLUSTER, broker=BROKER
    )
    with pytest.raises(Invalid, match="s it that of another tier"):
        fill(tmp_path, messages(5, first=5), tier=elsewhere, name="more")
