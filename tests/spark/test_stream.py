"""Spark runs streams. Each message is delivered once, across restarts, kills and new topics."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.paths import ROOT
from tests.kit.spark.cluster import Cluster
from tieredstore.spark.lag import Lag, LagListener
from tieredstore.spark.source import RocketmqTieredDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

COLUMNS = ("topic", "queue_id", "queue_offset")
Place = tuple[str, int, int]


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    built = GrowingTier(tmp_path / "built")
    built.append("orders", 0, 12)
    built.append("orders", 1, 4)
    return built


def writer(spark: SparkSession, url: str, folder: Path, options: dict[str, str]) -> Any:
    given = {"subscribePattern": ".*", "startingOffsets": "earliest", **options}
    given.setdefault("listInterval", "0")
    messages = spark.readStream.format("rocketmq_tiered").options(**given).load(url)
    found: DataStreamWriter = messages.select(*COLUMNS).writeStream.format("parquet")
    return found.option("path", f"{folder}/out").option("checkpointLocation", f"{folder}/points")


def available_now(
    spark: SparkSession, url: str, folder: Path, options: dict[str, str]
) -> list[int]:
    """Return the number of rows in each batch. The query ends when it has read all available
    data."""
    spark.dataSource.register(RocketmqTieredDataSource)
    query = writer(spark, url, folder, options).trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress]


def rows(spark: SparkSession, folder: Path) -> list[Place]:
    found = spark.read.parquet(f"{folder}/out").select(*COLUMNS).collect()
    return sorted((row.topic, row.queue_id, row.queue_offset) for row in found)


def places(topic: str, queue_id: int, count: int) -> list[Place]:
    return [(topic, queue_id, offset) for offset in range(count)]


def test_available_now_with_limits_reads_all_in_steps(
    spark: SparkSession, tier: GrowingTier, tmp_path: Path
) -> None:
    batches = available_now(spark, tier.url, tmp_path, {"maxOffsetsPerTrigger": "6"})
    assert [count for count in batches if count] == [6, 6, 4]
    tier.append("orders", 1, 4)
    tier.append("later", 0, 3)
    batches = available_now(spark, tier.url, tmp_path, {"maxBytesPerTrigger": "1100"})
    assert sum(batches) == 7
    assert max(batches) <= 4
    wanted = places("later", 0, 3) + places("orders", 0, 12) + places("orders", 1, 8)
    assert rows(spark, tmp_path) == wanted


def until(query: StreamingQuery, done: Any) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.1)


def test_a_running_stream_sees_new_topics_and_fails_on_one_that_was_made_again(
    spark: SparkSession, tier: GrowingTier, tmp_path: Path
) -> None:
    spark.dataSource.register(RocketmqTieredDataSource)
    behind: dict[str, Lag] = {}
    listener = LagListener(behind.__setitem__)
    spark.streams.addListener(listener)
    query = writer(spark, tier.url, tmp_path, {}).trigger(processingTime="200 milliseconds").start()
    try:
        until(query, lambda: sum(one["numInputRows"] for one in query.recentProgress) == 16)
        tier.append("later", 0, 3)
        tier.append("orders", 0, 2)
        until(query, lambda: sum(one["numInputRows"] for one in query.recentProgress) == 21)
        source = query.lastProgress["sources"][0]
        assert '"later"' in str(source["endOffset"]).replace("'", '"')
        until(query, lambda: behind and list(behind.values())[-1].by_topic.get("later") == 0)
        assert list(behind) == [str(query.id)]
        tier.make_again("orders")
        tier.append("orders", 0, 20, body_bytes=101)
        with pytest.raises(Exception, match="the topic was made again") as raised:
            query.awaitTermination(60)
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    text = str(raised.value)
    assert "then message 13 with the mark " in text
    assert re.search(
        r"now message 13 with the mark \S{5} stored 2023-11-14T22:13:33\.001Z \(", text
    )
    wanted = places("later", 0, 3) + places("orders", 0, 14) + places("orders", 1, 4)
    assert rows(spark, tmp_path) == wanted


def test_a_cluster_streams(cluster: Cluster, tier: GrowingTier, tmp_path: Path) -> None:
    batches = cluster.call(available_now, tier.url, tmp_path, {"maxOffsetsPerTrigger": "10"})
    assert sum(batches) == 16
    assert cluster.call(rows, tmp_path) == places("orders", 0, 12) + places("orders", 1, 4)


PATIENCE_S = 600
"""Time limit in seconds. It allows for machines on which a stream needs minutes to start."""
KILLS = ("checkpoint/offsets/1", "out/_spark_metadata/2")
MORE_KILLS = ("checkpoint/commits/0", *KILLS, "checkpoint/offsets/4", "checkpoint/commits/5")


def stream(tier: GrowingTier, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.kit.spark.streaming_child", tier.url, str(folder), "7"],
        cwd=ROOT,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        start_new_session=True,  # to be killed with its JVM
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("kills", [KILLS, pytest.param(MORE_KILLS, marks=pytest.mark.slow)])
def test_each_message_once_over_kills(
    spark: SparkSession, tier: GrowingTier, tmp_path: Path, kills: tuple[str, ...]
) -> None:
    tier.append("orders", 0, 40)
    for point in kills:
        process = stream(tier, tmp_path)
        deadline = time.monotonic() + PATIENCE_S
        try:
            while not (tmp_path / point).exists():
                assert process.poll() is None, process.communicate()[1].decode()
                assert time.monotonic() < deadline, point
                time.sleep(0.002)
        finally:
            kill(process)
        tier.append("orders", 1, 3)
    process = stream(tier, tmp_path)
    try:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors.decode()
    finally:
        kill(process)
    found = spark.read.parquet(f"{tmp_path}/out").collect()
    wanted = {(0, n): f"orders/0/{n} " for n in range(52)}
    wanted |= {(1, n): f"orders/1/{n} " for n in range(4 + 3 * len(kills))}
    assert len(found) == len(wanted)
    for row in found:
        text = wanted.pop((row.queue_id, row.queue_offset))
        assert row.body.decode() == (text * 20)[:100]
    assert wanted == {}
    shutil.rmtree(tmp_path / "out")
