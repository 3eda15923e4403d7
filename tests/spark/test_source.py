"""Spark runs batch queries on the data source."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.growing_tier import BROKER, GrowingTier
from tests.kit.object_store.servers import (
    CREDENTIALS,
    ENVIRONMENT,
    NotHere,
    Servers,
)
from tests.kit.spark.cluster import Cluster
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.scan.arrow.schema import TYPES
from tieredstore.spark.source import RocketmqTieredDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
Place = tuple[str, int, int]


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(RocketmqTieredDataSource)
    return spark


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> GrowingTier:
    built = GrowingTier(tmp_path_factory.mktemp("tier"))
    for _ in range(3):
        built.append("orders", 0, 4)
        built.roll("orders", 0)
    built.append("orders", 1, 5)
    return built


def frame(spark: SparkSession, url: str, **options: str) -> DataFrame:
    given = {"subscribePattern": ".*", **options}
    return spark.read.format("rocketmq_tiered").options(**given).load(url)


def error_of(found: DataFrame) -> str:
    with pytest.raises(Exception, match="tieredstore") as raised:
        found.collect()
    return str(raised.value)


@pytest.fixture(scope="module")
def expected(public_a_manifest: dict[str, Any]) -> dict[Place, dict[str, Any]]:
    return {
        (m["topic"], m["queueId"], m["queueOffset"]): m
        for m in public_a_manifest["messages"]
        if m.get("tiered")
    }


def test_a_java_tier_as_a_frame_is_what_java_wrote(
    registered: SparkSession, public_a: Path, expected: dict[Place, dict[str, Any]]
) -> None:
    url = f"file://{public_a / 'tiered'}"
    rows = frame(registered, url, includeProperties="true", minPartitions="8").collect()
    assert rows[0].__fields__ == [*(name for name in TYPES if name != "properties"), "properties"]
    left = dict(expected)
    assert len(rows) == len(left)
    for row in rows:
        m = left.pop((row.topic, row.queue_id, row.queue_offset))
        assert row.properties == m["properties"]
        assert row.msg_id == m["properties"].get("UNIQ_KEY", row.offset_msg_id)
        assert row["keys"] == (m["properties"].get("KEYS") or "").split()
        assert row.tags == m["properties"].get("TAGS")
        assert round(row.store_timestamp.timestamp() * 1000) == m["storeTimestamp"]
        assert round(row.born_timestamp.timestamp() * 1000) == m["bornTimestamp"]
        assert hashlib.sha256(row.body).hexdigest() == m["bodySHA256"]
        assert row.body_length == len(row.body)
        assert (row.body_crc, row.flag) == (m["bodyCRC"], m["flag"])
        assert row.physical_offset == m["tiered"]["commitLogOffset"]
        assert (row.broker, row.reconsume_times) == ("labBroker", m["reconsumeTimes"])
    assert left == {}


def test_a_temporary_view_in_sql(
    registered: SparkSession, public_a: Path, expected: dict[Place, dict[str, Any]]
) -> None:
    registered.sql(
        "CREATE OR REPLACE TEMPORARY VIEW messages USING rocketmq_tiered "
        f"OPTIONS (path '{public_a / 'tiered'}', subscribePattern '.*')"
    )
    found = registered.sql("SELECT topic, count(*) FROM messages GROUP BY topic").collect()
    assert dict(map(tuple, found)) == Counter(topic for topic, _, _ in expected)


def test_a_table_is_refused_with_that_advice(registered: SparkSession) -> None:
    statement = "CREATE TABLE refused USING rocketmq_tiered OPTIONS (path '/tier', subscribe 'x')"
    here = Path("spark-warehouse")
    was_there = here.exists()  # left by an earlier version of this test
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        registered.sql(statement)
    assert here.exists() == was_there


@pytest.fixture
def pushes_down(registered: SparkSession, request: pytest.FixtureRequest) -> Iterator[bool]:
    before = registered.conf.get(PUSH_DOWN) or "false"
    registered.conf.set(PUSH_DOWN, str(request.param).lower())
    yield request.param
    registered.conf.set(PUSH_DOWN, before)


@pytest.mark.parametrize("pushes_down", [False, True], indirect=True)
def test_filters_cut_what_is_read_where_spark_pushes_them(
    registered: SparkSession, tier: GrowingTier, pushes_down: bool
) -> None:
    everything = frame(registered, tier.url, maxPartitionBytes="1100", pushDownFilters="true")
    assert everything.rdd.getNumPartitions() >= 4
    found = everything.where(
        "topic = 'orders' and queue_id = 0 and queue_offset >= 6 and tags in ('T0', 'T1') "
        f"and broker = '{BROKER}' and store_timestamp < timestamp '2023-11-14 22:13:29.500'"
    )
    assert sorted(row.queue_offset for row in found.collect()) == [6, 7, 9]
    assert (found.rdd.getNumPartitions() <= 2) == pushes_down


@pytest.mark.parametrize("pushes_down", [True], indirect=True)
def test_no_query_over_a_frame_gets_a_row_that_its_filter_excludes(
    registered: SparkSession, tier: GrowingTier, pushes_down: bool
) -> None:
    """No query over a DataFrame gets a row that its filter excludes. Spark may use one plan, with
    the filters of one side, for both sides of a union or a join."""

    def orders() -> DataFrame:
        return frame(registered, tier.url, pushDownFilters="true").where("queue_id = 0")

    both = orders()
    low, high = both.where("queue_offset < 5"), both.where("queue_offset >= 5")
    found = [row.queue_offset for row in low.union(high).collect()]
    assert len(found) == len(set(found))
    tagged = orders()
    joined = tagged.where("tags = 'T0'").alias("a").join(tagged.alias("b"), "queue_offset")
    assert {row["a.tags"] for row in joined.selectExpr("a.tags as `a.tags`").collect()} <= {"T0"}
    again = orders()
    assert again.where("tags = 'T1'").count() == 4
    assert again.where("queue_offset < 5 and tags = 'T0'").count() == 2


@pytest.mark.parametrize("pushes_down", [True], indirect=True)
def test_pushed_times_with_a_session_in_another_zone(
    registered: SparkSession, tier: GrowingTier, pushes_down: bool
) -> None:
    registered.conf.set("spark.sql.session.timeZone", "Asia/Shanghai")
    try:
        found = frame(registered, tier.url, pushDownFilters="true").where(
            "queue_id = 0 and store_timestamp >= timestamp '2023-11-15 06:13:29'"
        )
        assert sorted(row.queue_offset for row in found.collect()) == [9, 10, 11]
    finally:
        registered.conf.set("spark.sql.session.timeZone", "UTC")


def test_columns_by_schema_and_by_option(registered: SparkSession, tier: GrowingTier) -> None:
    reader = registered.read.format("rocketmq_tiered").option("SUBSCRIBE", "orders")
    places = reader.schema("queue_id int, queue_offset long").load(tier.url)
    assert places.count() == 17
    named = frame(registered, tier.url, columns="queue_id,keys", keys="KEY-4").collect()
    assert [tuple(row) for row in named] == [(0, ["KEY-4"]), (1, ["KEY-4"])]
    wrong = reader.schema("queue_id long").load(tier.url)
    assert "schema: column 'queue_id': expected int, found bigint" in error_of(wrong)


def test_one_damaged_segment_among_many(registered: SparkSession, tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path)
    for _ in range(100):
        tier.append("many", 0, 1)
        tier.roll("many", 0)
    path = tier.segments("many", 0, FileSegmentType.COMMIT_LOG)[56]
    data = bytearray(path.read_bytes())
    data[95] ^= 1
    path.write_bytes(data)
    text = error_of(frame(registered, tier.url, minPartitions="3"))
    assert f"broker-a/many/0/COMMIT_LOG@{int(path.name[-20:])} byte" in text
    report = str(tmp_path / "report")
    found = frame(registered, tier.url, onDamage="skip", corruptReportPath=report)
    assert found.count() == 99
    assert [row.queue_offset for row in registered.read.json(report).collect()] == [56]


def test_wrong_options_fail_where_they_are_given(registered: SparkSession) -> None:
    with pytest.raises(Exception, match="no option 'subscribee'; did you mean subscribe"):
        frame(registered, "/tier", subscribee="x")


# Where tasks run elsewhere


def places_of(spark: SparkSession, url: str, options: dict[str, str]) -> list[tuple[Any, ...]]:
    """Return the rows as tuples. This function runs in the cluster's driver."""
    from tieredstore.spark import enable

    enable(spark)
    return [tuple(row) for row in frame(spark, url, **options).collect()]


def test_a_write_names_the_job_that_writes(registered: SparkSession, tier: GrowingTier) -> None:
    rows = registered.createDataFrame([("orders", b"x")], "topic string, body binary")
    with pytest.raises(Exception, match=r"writes none.*backfill_frame.*tieredstore backfill"):
        rows.write.format("rocketmq_tiered").mode("append").save(tier.url)
    stream = registered.readStream.format("rate").load()
    with pytest.raises(Exception, match=r"writes none.*backfill_frame.*tieredstore backfill"):
        stream.writeStream.format("rocketmq_tiered").option(
            "checkpointLocation", str(tier.root / "checkpoint")
        ).start(tier.url).awaitTermination()


def test_a_cluster_reads_with_what_was_sent_to_it(cluster: Cluster, tier: GrowingTier) -> None:
    options = {"minPartitions": "4", "columns": "queue_id,queue_offset,tags"}
    found = cluster.call(places_of, tier.url, options)
    wanted = [(0, n, f"T{n % 3}") for n in range(12)] + [(1, n, f"T{n % 3}") for n in range(5)]
    assert sorted(found) == wanted


@pytest.mark.parametrize("server", ["moto", "versitygw"])
def test_an_object_store_with_keys_of_the_options(
    registered: SparkSession,
    tier: GrowingTier,
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    servers = Servers(tmp_path / "servers")
    try:
        store = servers.bucket(server)
        ran = tieredstore(
            "copy", "--from", tier.url, "--to", store.url(), "--to-state", tmp_path / "state",
            "--quiet",
        )  # fmt: skip
        assert ran.code == 0, ran.err
        url = store.url().replace("s3://", "s3a://")
        keys = dict(zip(("objectStoreAccessKey", "objectStoreSecretKey"), CREDENTIALS, strict=True))
        found = frame(registered, url, properties=json.dumps(keys), minPartitions="2")
        bodies = {(row.queue_id, row.queue_offset): row.body for row in found.collect()}
        here = frame(registered, tier.url).collect()
        assert bodies == {(row.queue_id, row.queue_offset): row.body for row in here}
        if server == "versitygw":
            keys["objectStoreSecretKey"] = "no-such-secret"
            text = error_of(frame(registered, url, properties=json.dumps(keys)))
            assert store.bucket in text
            assert "no-such-secret" not in text
    except NotHere as reason:
        pytest.skip(str(reason))
    finally:
        servers.stop()
