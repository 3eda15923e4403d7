"""`tieredstore.open(url).scan(…)`: the same rows in every library, tasks that travel."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import tieredstore
from tests.kit.paths import ROOT
from tests.kit.tier_builder import (
    INDEX_BEGIN_MS,
    START_MS,
    BuiltTier,
    TierBuilder,
    message,
    small_tier,
)
from tieredstore.errors import Corrupt, Invalid
from tieredstore.scan import tasks
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


def test_a_second_query_over_one_relation_is_an_error_that_says_so(tier: Tier) -> None:
    relation = tier.scan("orders", columns=["queue_id"]).to_duckdb()
    assert relation.aggregate("count(*)").fetchall() == [(16,)]
    with pytest.raises(Exception, match=r"read already.*answers one query.*create"):
        relation.aggregate("count(*)").fetchall()


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
    path = sorted((tmp_path / "tier").rglob("orders/0/CONSUME_QUEUE/*"), key=lambda p: p.name[8:])[
        position // 5
    ]
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
    assert offsets(topic_pattern="ord") == []
    assert offsets(topic="over6", tags=["Tag1", "nobody"]) == [1, 4]
    at = built.stored["orders", 0][2].store_timestamp_ms
    moment = datetime.fromtimestamp(at / 1000, UTC)
    for since in (at, moment, moment.replace(tzinfo=None), moment.isoformat()):
        assert offsets(topic="orders", queue_ids=[0], since=since)[0] == 102
    assert offsets(topic="orders", queue_ids=[0], until=moment) == [100, 101]
    assert offsets(since="-1h") == []


def test_what_the_tier_has_not_is_refused_with_near_names(tier: Tier) -> None:
    assert tier.topics() == ["orders", "over6"]
    with pytest.raises(Invalid, match="did you mean orders"):
        tier.scan("order").plan()
    with pytest.raises(Invalid, match="no broker 'x'"):
        tier.scan(brokers=["x"]).plan()
    with pytest.raises(Invalid, match="topic pattern"):
        tier.scan(topic_pattern="(").plan()
    with pytest.raises(Invalid, match="did you mean body"):
        tier.scan(columns=["bodi"])
    with pytest.raises(Invalid, match="target_bytes"):
        tier.scan().plan(target_bytes=0)
    with pytest.raises(Invalid, match="no such directory"):
        tieredstore.open(tier.location.url + "/nothing")


class TestKeys:
    def test_are_found_by_the_index_and_behind_it(
        self, built: BuiltTier, tier: Tier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without the hour that an index may be behind, the index alone is asked up to its end."""
        key = "orders-0-3"
        for lag in (0, tasks.INDEX_LAG_MS):
            monkeypatch.setattr(tasks, "INDEX_LAG_MS", lag)
            for use_index in (True, False):
                scan = tier.scan("orders", keys=key, use_index=use_index)
                assert scan.to_arrow()["queue_offset"].to_pylist() == [103]
        monkeypatch.setattr(tasks, "INDEX_LAG_MS", 0)
        last = built.stored["over6", 0][-1]
        found = tier.scan(keys=[key, *last.message.keys], columns=["keys"])
        assert [task.range.count for task in found.plan()] == [1, 1]
        assert found.to_arrow()["keys"].to_pylist() == [[key], last.message.keys]
        assert tier.scan("orders", keys="nobody").to_arrow().num_rows == 0
        assert tier.scan("orders", keys=key, from_offset=104).to_arrow().num_rows == 0

    def test_of_messages_that_are_not_indexed_yet_are_found(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tasks, "INDEX_LAG_MS", 0)
        builder = TierBuilder(tmp_path)
        builder.queue("a", 0, [message("a", 0, n) for n in range(4)])
        builder.index()
        builder.queue("b", 0, [message("b", 0, n) for n in range(4)])
        assert builder.built.stored["b", 0][0].store_timestamp_ms > START_MS > INDEX_BEGIN_MS
        tier = tieredstore.open(builder.built.url)
        for key in ("a-0-2", "b-0-2"):
            assert tier.scan(keys=key).to_arrow()["keys"].to_pylist() == [[key]]

    def test_are_found_without_an_index_that_is_damaged(self, tmp_path: Path) -> None:
        built = small_tier(tmp_path)
        [path] = (tmp_path / "tier").rglob("INDEX/*")
        path.write_bytes(b"\x00" * 40)
        found = tieredstore.open(built.url).scan(keys="orders-0-3").to_arrow()
        assert found["queue_offset"].to_pylist() == [103]


def test_damage_raises_or_is_counted(tmp_path: Path) -> None:
    built = small_tier(tmp_path)
    path = min((tmp_path / "tier").rglob("orders/0/COMMIT_LOG/*"))
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
        with pytest.raises(Invalid, match=rf"{library} is not installed.*tieredstore\[{extra}\]"):
            convert()
        monkeypatch.undo()


def test_there_is_nothing_else_in_the_package() -> None:
    with pytest.raises(AttributeError, match="no attribute 'close'"):
        _ = tieredstore.close  # type: ignore[attr-defined]
