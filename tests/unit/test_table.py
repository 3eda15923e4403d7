"""`tieredstore.open(url).scan(…)` returns the same rows as Arrow, pandas, Polars and DuckDB
objects. A scan can be split into tasks for other processes."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.kit.paths import ROOT
from tests.kit.tier_builder import (
    BuiltTier,
    small_tier,
)
from tieredstore.errors import Corrupt, Invalid
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.arrow.schema import DEFAULT_COLUMNS
from tieredstore.scan.findings import Finding
from tieredstore.table import Tier


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("table"))


@pytest.fixture
def tier(built: BuiltTier) -> Tier:
    return tieredstore.open(built.url)


def test_every_library_gets_the_same_rows(tier: Tier) -> None:
    scan = tier.scan(["orders", "over6"])
    arrow = scan.to_arrow()
    assert arrow.column_names == list(DEFAULT_COLUMNS)
    assert arrow.num_rows == 22
    assert scan.to_arrow_batch_reader().read_all().equals(arrow)
    assert scan.to_duckdb().to_arrow_table().num_rows == 22
    names = ["queue_offset", "msg_id", "tags", "body", "store_timestamp"]
    expected = arrow.select(names).to_pylist()
    frame = scan.to_pandas()[names]
    assert [tuple(row) for row in frame.itertuples(index=False)] == [
        tuple(row.values()) for row in expected
    ]
    assert scan.to_polars().select(names).to_dicts() == expected
    found = scan.to_duckdb().select(*names[:4]).fetchall()
    assert found == [tuple(row.values())[:4] for row in expected]


def test_each_query_over_one_relation_reads_the_tier_anew(tier: Tier) -> None:
    relation = tier.scan("orders", columns=["queue_id"]).to_duckdb()
    assert "queue_id" in repr(relation)
    for _ in range(2):
        assert relation.aggregate("count(*)").fetchall() == [(16,)]


def test_libraries_take_a_scan_itself(tier: Tier) -> None:
    """Libraries accept a scan through Arrow's C stream interface. Each use reads the scan again."""
    import duckdb
    import polars as pl
    import pyarrow as pa

    orders = tier.scan("orders", columns=["queue_id", "queue_offset"])
    expected = orders.to_arrow()
    for _ in range(2):
        assert duckdb.execute("select count(*), min(queue_offset) from orders").fetchall() == [
            (16, 0)
        ]
        assert pa.table(orders).equals(expected)
        assert pl.DataFrame(orders).rows() == [tuple(r.values()) for r in expected.to_pylist()]
    with duckdb.connect() as connection:
        assert connection.sql("select count(*) from orders limit 1").fetchall() == [(16,)]
    wanted = pa.schema([("queue_id", pa.int64()), ("queue_offset", pa.int64())])
    assert pa.schema(orders) == expected.schema
    cast = pa.RecordBatchReader.from_stream(orders, schema=wanted).read_all()
    assert cast.schema == wanted
    assert cast.to_pylist() == expected.to_pylist()


def open_files() -> Counter[str]:
    found: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found[str(entry.readlink())] += 1
    return found


def test_a_reader_that_is_closed_holds_nothing_even_while_it_is_known(tier: Tier) -> None:
    # Objects of other tests may be deleted in the meantime.
    before, threads, kept = open_files(), set(threading.enumerate()), []
    for _ in range(5):
        with tier.scan("orders", batch_bytes=1).to_arrow_batch_reader() as reader:
            assert reader.read_next_batch().num_rows
            assert open_files() - before
        kept.append(reader)
    batches = tier.scan("orders", batch_bytes=1).batches()
    assert next(batches).num_rows
    batches.close()
    relation = tier.scan("orders", batch_bytes=1).to_duckdb()
    assert len(relation.limit(1).fetchall()) == 1
    assert open_files() <= before
    assert set(threading.enumerate()) <= threads


@pytest.mark.parametrize("limit", [0, 1, 11, 12, 13, 16, 22, 23])
def test_a_limit_is_the_most_rows_that_are_read(tier: Tier, limit: int) -> None:
    whole = tier.scan(batch_bytes=400).to_arrow()
    found = tier.scan(batch_bytes=400, limit=limit).to_arrow()
    assert found.equals(whole.slice(0, limit))
    assert tier.scan(limit=limit).count_rows() == min(limit, 22)
    for task in tier.scan(limit=limit).plan():
        rows = sum(batch.num_rows for batch in task.read())
        assert rows == min(limit, task.range.count)


def test_a_limit_counts_rows_that_filters_leave(tier: Tier) -> None:
    found = tier.scan("orders", tags="Tag2", limit=3, batch_bytes=1).to_arrow()
    assert found["tags"].to_pylist() == ["Tag2"] * 3
    with pytest.raises(Invalid, match="limit: expected 0 or more, found -1"):
        tier.scan(limit=-1)


def test_rows_are_counted_without_the_commit_log_unless_records_are_verified(
    tmp_path: Path,
) -> None:
    built = small_tier(tmp_path)
    tier = tieredstore.open(built.url)
    [units] = (tmp_path / "tier").rglob("orders/1/CONSUME_QUEUE/[!.]*")
    last = int.from_bytes(units.read_bytes()[-20:][:8], "big")
    [log] = (tmp_path / "tier").rglob("orders/1/COMMIT_LOG/[!.]*")
    # All zeros except the head of the last message, by which the end of the queue is known.
    head = log.read_bytes()[last : last + 8]
    log.write_bytes((bytes(last) + head).ljust(log.stat().st_size, b"\0"))
    assert tier.scan("orders").count_rows() == 16
    columns = ["topic", "broker", "queue_id", "queue_offset", "physical_offset"]
    assert tier.scan("orders", columns=columns).to_arrow().num_rows == 16
    for verified in (
        tier.scan("orders", verify_records=True).count_rows,
        tier.scan("orders", columns=columns, verify_records=True).to_arrow,
    ):
        with pytest.raises(Corrupt, match="orders/1"):
            verified()
    findings: list[Finding] = []
    scan = tier.scan("orders", verify_records=True, on_finding=findings.append)
    assert scan.count_rows() == 12
    assert findings
    assert tier.scan("orders", tags="Tag0", queue_ids=[0]).count_rows() == 4


def test_a_relation_can_be_made_a_table_of_a_connection(tier: Tier) -> None:
    import duckdb

    with duckdb.connect() as connection:
        tier.scan("orders", columns=["queue_id", "body"]).to_duckdb(connection).create("orders")
        for _ in range(2):
            query = "select queue_id, count(*) from orders group by 1 order by 1"
            assert connection.sql(query).fetchall() == [(0, 12), (1, 4)]


def test_tasks_are_read_in_another_process(tier: Tier, tmp_path: Path) -> None:
    planned = tier.scan(columns=["topic", "queue_id", "queue_offset"]).plan(target_bytes=400)
    assert len(planned) > 5
    script = (
        "import pickle, sys\n"
        "tasks = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print([b.to_pylist() for t in tasks for b in t.read()])"
    )
    (tmp_path / "tasks").write_bytes(pickle.dumps(planned))
    found = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "tasks")],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert found.stdout.strip() == str([b.to_pylist() for task in planned for b in task.read()])


def test_a_tier_is_listed_once_for_a_plan_and_not_by_tasks(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[str]()
    really: dict[str, Any] = {"__init__": PosixProvider.__init__, "list": PosixProvider.list}
    for name, whole in really.items():

        def counted(
            self: PosixProvider, *args: Any, name: str = name, whole: Any = whole, **named: Any
        ) -> Any:
            calls[name] += 1
            return whole(self, *args, **named)

        monkeypatch.setattr(PosixProvider, name, counted)
    tasks = pickle.loads(pickle.dumps(tier.scan().plan(target_bytes=400)))
    assert calls == {"__init__": 1, "list": 1}
    assert sum(batch.num_rows for task in tasks for batch in task.read()) == 22
    assert calls == {"__init__": 1 + len(tasks), "list": 1}
    calls.clear()
    assert tier.scan().to_arrow().num_rows == 22
    assert calls == {"__init__": 1, "list": 1}


def test_a_task_knows_only_the_segments_that_it_needs(tier: Tier) -> None:
    planned = tier.scan("orders", queue_ids=[0]).plan(target_bytes=1)
    assert len(planned) == 12
    assert {
        (len(task.range.queue.commit_log), len(task.range.queue.consume_queue)) for task in planned
    } == {(1, 1)}
    rows = [row for task in planned for batch in task.read() for row in batch.to_pylist()]
    assert [row["queue_offset"] for row in rows] == list(range(100, 112))


@pytest.mark.parametrize("position", [0, 1, 11])
@pytest.mark.parametrize("offset", [0, 1 << 40, -1])
def test_a_damaged_unit_costs_its_own_message_alone(
    tmp_path: Path, position: int, offset: int
) -> None:
    built = small_tier(tmp_path)
    path = sorted(
        (tmp_path / "tier").rglob("orders/0/CONSUME_QUEUE/[!.]*"), key=lambda p: p.name[8:]
    )[position // 5]
    data = bytearray(path.read_bytes())
    at = position % 5 * 20
    data[at : at + 8] = offset.to_bytes(8, "big", signed=True)
    path.write_bytes(data)
    findings: list[Finding] = []
    scan = tieredstore.open(built.url).scan("orders", queue_ids=[0], on_finding=findings.append)
    found = scan.to_arrow()["queue_offset"].to_pylist()
    whole = list(range(100, 112))
    assert found == [n for n in whole if n != 100 + position or (position, offset) == (0, 0)]


def test_offsets_times_tags_queues_and_patterns_choose(tier: Tier, built: BuiltTier) -> None:
    def offsets(**chosen: object) -> list[int]:
        scan = tier.scan(columns=["queue_offset"], **chosen)  # type: ignore[arg-type]
        found: list[int] = scan.to_arrow()["queue_offset"].to_pylist()
        return found

    assert offsets(topic="orders", from_offset=103, until_offset=105) == [103, 104]
    assert offsets(topic_pattern="ord.*", queue_ids=[1]) == [0, 1, 2, 3]
    with pytest.raises(Invalid, match="no topic matches the pattern 'ord'"):
        offsets(topic_pattern="ord")
    assert offsets(topic="over6", tags=["Tag1", "nobody"]) == [1, 4]
    at = built.stored["orders", 0][2].store_timestamp_ms
    moment = datetime.fromtimestamp(at / 1000, UTC)
    for since in (at, moment, moment.replace(tzinfo=None), moment.isoformat()):
        assert offsets(topic="orders", queue_ids=[0], since=since)[0] == 102
    assert offsets(topic="orders", queue_ids=[0], until=moment) == [100, 101]
    assert offsets(since="-1h") == []


def test_what_the_tier_has_not_is_refused_with_near_names(tier: Tier) -> None:
    assert tier.topics() == ["orders", "over6"]
    with pytest.raises(Invalid, match="Did you mean orders"):
        tier.scan("order").plan()
    with pytest.raises(Invalid, match="no broker 'x'"):
        tier.scan(brokers=["x"]).plan()
    with pytest.raises(Invalid, match="topic pattern"):
        tier.scan(topic_pattern="(").plan()
    with pytest.raises(Invalid, match="Did you mean body"):
        tier.scan(columns=["bodi"])
    with pytest.raises(Invalid, match="expected at most 1073741824, found 1073741825"):
        tier.scan(batch_bytes=(1 << 30) + 1)
    with pytest.raises(Invalid, match="target_bytes: expected a number above 0, found 0"):
        tier.scan().plan(target_bytes=0)
    with pytest.raises(Invalid, match="no such directory"):
        tieredstore.open(tier.location.url + "/nothing")


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("topic", 5, "topic: expected a text or texts, found 5"),
        ("topic", ["a", None], "topic: expected a text or texts"),
        ("topic", b"a", "topic: expected a text or texts"),
        ("tags", [1], "tags: expected a text or texts"),
        ("keys", {"a": 1}, "keys: expected a text or texts"),
        ("brokers", 1.5, "brokers: expected a text or texts"),
        ("topic_pattern", 5, "topic_pattern: expected a text, found 5"),
        ("columns", 5, "columns: expected a text or texts, found 5"),
        ("columns", [3], "columns: expected a text or texts"),
        ("queue_ids", 0.5, "queue_ids: expected a number or numbers, found 0.5"),
        ("queue_ids", ["0"], "queue_ids: expected a number or numbers"),
        ("queue_ids", "0", "queue_ids: expected a number or numbers"),
        ("from_offset", "3", "from_offset: expected a number, found '3'"),
        ("from_offset", 1.5, "from_offset: expected a number, found 1.5"),
        ("until_offset", True, "until_offset: expected a number, found True"),
        ("since", 1.5, "time 1.5: expected"),
        ("until", b"now", "time b'now': expected"),
        ("batch_bytes", "4m", "batch_bytes: expected a number above 0, found '4m'"),
        ("batch_bytes", 0, "batch_bytes: expected a number above 0, found 0"),
        ("body_limit_bytes", 0, "body_limit_bytes: expected a number above 0, found 0"),
        ("limit", 2.5, "limit: expected 0 or more, found 2.5"),
        ("limit", True, "limit: expected 0 or more, found True"),
        ("check_bodies", "no", "check_bodies: expected True or False, found 'no'"),
        ("use_index", None, "use_index: expected True or False, found None"),
        ("search_times", 0, "search_times: expected exact or sampled, found 0"),
        ("verify_records", 1, "verify_records: expected True or False, found 1"),
        ("on_finding", 3, "on_finding: expected a function, found 3"),
    ],
)
def test_an_argument_of_a_wrong_type_is_invalid(
    tier: Tier, argument: str, value: object, expected: str
) -> None:
    with pytest.raises(Invalid, match=re.escape(expected)):
        tier.scan(**{argument: value})  # type: ignore[arg-type]


def test_one_queue_id_and_numbers_of_numpy_are_taken(tier: Tier) -> None:
    import numpy as np

    assert tier.scan("orders", queue_ids=1).count_rows() == 4
    ids: Any = np.array([0, 1])
    offset: Any = np.int64(3)
    assert tier.scan("orders", queue_ids=ids, until_offset=offset).count_rows() == 3
    assert tier.scan("orders", columns="body").to_arrow().column_names == ["body"]


def test_a_wrong_target_size_is_invalid(tier: Tier) -> None:
    with pytest.raises(Invalid, match="target_bytes: expected a number above 0, found '1m'"):
        tier.scan().plan(target_bytes="1m")  # type: ignore[arg-type]


def test_damage_raises_or_is_counted(tmp_path: Path) -> None:
    built = small_tier(tmp_path)
    path = min((tmp_path / "tier").rglob("orders/0/COMMIT_LOG/[!.]*"))
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)
    tier = tieredstore.open(built.url)
    with pytest.raises(Corrupt, match="byte 8"):
        tier.scan("orders").to_arrow()
    findings: list[Finding] = []
    assert tier.scan("orders", on_finding=findings.append).to_arrow().num_rows == 15
    assert [finding.kind for finding in findings] == ["record-body-crc"]
    assert tier.scan("orders", check_bodies=False).to_arrow().num_rows == 16


def test_the_state_directory_says_which_segments_count(built: BuiltTier) -> None:
    tier = tieredstore.open(built.url, state=built.state)
    assert tier.scan("orders").to_arrow().num_rows == 16
    with pytest.raises(Invalid, match="no such directory"):
        tieredstore.open(built.url, state=built.state / "nothing")


def test_the_package_is_imported_without_pyarrow() -> None:
    code = "import tieredstore.cli.main, tieredstore.table, sys; print('pyarrow' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert found.stdout.strip() == "False"


def test_a_missing_library_is_named_with_its_extra(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = tier.scan("orders")
    for library, convert in (
        ("polars", scan.to_polars),
        ("pandas", scan.to_pandas),
        ("duckdb", scan.to_duckdb),
        ("pyarrow", lambda: tier.scan("orders")),
    ):
        monkeypatch.setitem(sys.modules, library, None)
        extra = library.replace("pyarrow", "arrow")
        with pytest.raises(
            Invalid, match=rf"{library}, which is not installed.*tieredstore\[{extra}\]"
        ):
            convert()
        monkeypatch.undo()


def test_there_is_nothing_else_in_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'close'"):
        _ = tieredstore.close  # type: ignore[attr-defined]
