"""A table becomes a valid tier that our store can serve."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tieredstore
from tests.kit.jobs.backfill import (
    BROKER,
    CLUSTER,
    SMALL_INDEX,
    START_MS,
    contents,
    damage,
    fill,
    found,
    memory_tier,
    messages,
    new_run,
    tier_at,
)
from tieredstore.config import StorageLevel, StoreConfig, config_from_properties
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.errors import Fenced, Invalid
from tieredstore.jobs.backfilling.frames import backfill_frame
from tieredstore.jobs.backfilling.job import run_backfill
from tieredstore.jobs.options import BackfillOptions
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.store import TieredMessageStore

GIVEN = ("topic", "queue_id", "queue_offset", "body", "keys", "tags")


def given(table: pa.Table, columns: tuple[str, ...] = GIVEN) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = table.select(columns).to_pylist()
    return rows


def test_messages_come_back_as_they_were_given_and_keys_find_them(tmp_path: Path) -> None:
    table = messages(50, first=100)
    report = fill(tmp_path, table, group_rows=7)
    assert report["messages"] == 50
    assert report["queues"] == [
        {
            "topic": "orders",
            "queue_id": 0,
            "from_offset": 100,
            "until_offset": 150,
            "message_bytes": report["message_bytes"],
            "segments": 1,
        }
    ]
    back = found(tmp_path)
    assert given(back) == given(table)
    assert back["store_timestamp"].cast(pa.int64())[3].as_py() == (START_MS + 103) * 1000
    assert damage(tier_at(tmp_path)) == []
    opened = tieredstore.open(tier_at(tmp_path).url, state=tmp_path / "state")
    by_key = opened.scan("orders", keys=["key-0-117"]).to_arrow()
    assert by_key["queue_offset"].to_pylist() == [117]


def test_times_that_spark_and_hive_write_in_96_bits_keep_their_year(tmp_path: Path) -> None:
    """Parquet's 96-bit times keep their year. As nanoseconds in 64 bits, the year 2600 would become
    2015."""
    year_2600_ms = 19_880_899_200_000
    times = pa.array([START_MS, year_2600_ms, year_2600_ms * 10], pa.timestamp("ms"))
    table = messages(3).drop_columns("store_timestamp")
    table = table.append_column("born_timestamp", times).append_column("store_timestamp", times)
    path = tmp_path / "t.parquet"
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    fill(tmp_path, str(path))
    for name in ("store_timestamp", "born_timestamp"):
        back = found(tmp_path)[name].cast(pa.int64()).to_pylist()
        assert back == [time * 1000 for time in times.cast(pa.int64()).to_pylist()]


def test_rows_in_any_order_over_many_files_are_put_in_the_order_of_their_offsets(
    tmp_path: Path,
) -> None:
    both = pa.concat_tables([messages(90, queue_id=0), messages(60, queue_id=1, first=7)])
    mixed = both.take([(row * 67) % 150 for row in range(150)])
    folder = tmp_path / "table"
    (folder / "deep").mkdir(parents=True)
    for name, first in (("a", 0), ("deep/b", 50), ("c", 100)):
        pq.write_table(mixed.slice(first, 50), folder / f"{name}.parquet", row_group_size=11)
    (folder / "_SUCCESS").touch()
    (folder / "_metadata.parquet").write_bytes(b"not one of the files")
    options = BackfillOptions(segment_bytes=1200)
    report = run_backfill(new_run(), tier_at(tmp_path), str(folder), options, task_bytes=2500)
    stages = {stage["stage"]: stage["tasks"] for stage in report["stages"]}  # type: ignore[attr-defined]
    assert stages["write"] > 5
    back = found(tmp_path)
    assert given(back) == given(both)
    assert damage(tier_at(tmp_path)) == []


def test_only_bodies_and_a_topic_are_needed(tmp_path: Path) -> None:
    """A table only needs bodies and a topic. Queues are assigned in turn, offsets by store time,
    and ids by position."""
    table = pa.table({"body": [b"a", b"", b"c", b"d", b"e"]})
    fill(tmp_path, table, BackfillOptions(topic="plain", queues=2))
    back = found(tmp_path)
    assert given(back, ("topic", "queue_id", "queue_offset", "body")) == [
        {"topic": "plain", "queue_id": queue, "queue_offset": offset, "body": body}
        for queue, offset, body in (
            (0, 0, b"a"), (0, 1, b"c"), (0, 2, b"e"), (1, 0, b""), (1, 1, b"d"),
        )
    ]  # fmt: skip
    assert len(set(back["msg_id"].to_pylist())) == 5
    assert back["store_timestamp"].null_count == 0
    assert back["store_timestamp"].equals(back["born_timestamp"])
    assert damage(tier_at(tmp_path)) == []
    again = tmp_path / "again"
    fill(again, table, BackfillOptions(topic="plain", queues=2))
    assert found(again)["msg_id"].equals(back["msg_id"])


def test_a_key_chooses_the_queue_as_javas_selector_does(tmp_path: Path) -> None:
    keys = [["alpha"], ["beta"], ["alpha", "x"], [], ["beta"], None]
    table = pa.table({"body": [b"."] * 6, "keys": keys, "store_timestamp": [5, 4, 3, 2, 1, 0]})
    fill(tmp_path, table, BackfillOptions(topic="keyed", queues=64))
    back = found(tmp_path)
    queues = {
        tuple(row["keys"]): row["queue_id"] for row in back.to_pylist() if len(row["keys"]) == 1
    }
    # "alpha".hashCode() is 92909918, "beta".hashCode() is 3020272
    assert queues == {("alpha",): 92909918 % 64, ("beta",): 3020272 % 64}
    alpha = back.filter(pc.equal(back["queue_id"], 92909918 % 64))
    assert [list(keys) for keys in alpha["keys"].to_pylist()] == [["alpha", "x"], ["alpha"]]


def test_segments_are_full_ones_and_no_message_lies_over_two(tmp_path: Path) -> None:
    body = [b"x" * size for size in (300, 300, 300, 5000, 10, 10)]
    table = messages(6).set_column(3, "body", pa.array(body))
    tier = tier_at(
        tmp_path, tieredStoreConsumeQueueMaxSize="40", tieredStoreCommitLogMaxSize="1000"
    )
    report = fill(tmp_path, table, tier=tier)
    assert report["segments"] == 4
    sizes = {name: len(data) for name, data in contents(tier).items()}
    logs = [size for name, size in sorted(sizes.items()) if "COMMIT_LOG" in name]
    assert sum(logs) == report["message_bytes"]
    assert max(logs) > 5000
    assert [size for name, size in sizes.items() if "CONSUME_QUEUE" in name] == [40, 40, 40]
    assert given(found(tmp_path, tier)) == given(table)
    assert damage(tier) == []


def test_more_messages_go_behind_those_that_are_there_which_stay_as_they_are(
    tmp_path: Path,
) -> None:
    fill(tmp_path, messages(20, first=5), name="first")
    before = contents(tier_at(tmp_path))
    fill(tmp_path, messages(30, first=25), name="second")
    after = contents(tier_at(tmp_path))
    assert all(after[name].startswith(data) for name, data in before.items())
    logs = [name for name in before if "COMMIT_LOG" in name]
    assert all(after[name] == before[name] for name in logs)
    assert given(found(tmp_path)) == given(messages(50, first=5))
    assert damage(tier_at(tmp_path)) == []


@pytest.mark.parametrize(
    ("first", "expected"),
    [(24, "expected a first new queue offset of 25"), (26, "of 25, where the queue"), (0, "of 25")],
)
def test_a_gap_or_an_overlap_is_refused_with_both_offsets(
    tmp_path: Path, first: int, expected: str
) -> None:
    fill(tmp_path, messages(20, first=5), name="first")
    before = contents(tier_at(tmp_path))
    with pytest.raises(Invalid, match=expected) as caught:
        fill(tmp_path, messages(30, first=first), name="second")
    assert f"found {first}" in str(caught.value)
    assert contents(tier_at(tmp_path)) == before


def test_messages_older_than_the_queue_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, messages(20), name="first")
    older = messages(5, first=20).drop_columns("store_timestamp")
    older = older.append_column("store_timestamp", pa.array([START_MS] * 5, pa.int64()))
    with pytest.raises(Invalid, match=f"at least {START_MS + 19} ms.*found {START_MS}"):
        fill(tmp_path, older, name="second")


def test_a_table_that_was_backfilled_is_left_alone(tmp_path: Path) -> None:
    """A repeated backfill of the same table writes nothing, even if the table has no offsets."""
    table = pa.table({"body": [b"a", b"b"]})
    options = BackfillOptions(topic="plain", queues=1)
    first = fill(tmp_path, table, options)
    before = contents(tier_at(tmp_path))
    second = run_backfill(new_run(), tier_at(tmp_path), str(tmp_path / "table.parquet"), options)
    assert (first["done_before"], second["done_before"]) == (False, True)
    assert second["queues"] == first["queues"]
    assert contents(tier_at(tmp_path)) == before


def test_a_running_broker_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    provider = PosixProvider(tmp_path / "tier", CLUSTER, fsync=False)
    epoch = provider.acquire_writer(BROKER)
    with pytest.raises(Fenced, match="writer"):
        fill(tmp_path, messages(3))
    epoch.release()
    provider.close()
    assert fill(tmp_path, messages(3))["messages"] == 3


def test_a_broker_that_takes_no_epoch_is_noticed_by_its_lock(tmp_path: Path) -> None:
    """A backfill is refused while a Java broker is running. A Java broker has no writer epoch, but
    locks the state directory."""
    (tmp_path / "state").mkdir()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX)"
    broker = subprocess.Popen(
        [sys.executable, "-c", f"{hold}; print('held', flush=True); sys.stdin.read()",
         str(tmp_path / "state" / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert broker.stdout is not None
    assert broker.stdout.readline() == b"held\n"
    with pytest.raises(Fenced, match="a broker runs on it"):
        fill(tmp_path, messages(3))
    broker.communicate()
    assert fill(tmp_path, messages(3))["messages"] == 3


def test_workers_in_processes_of_their_own_write_the_same_bytes(tmp_path: Path) -> None:
    table = pa.concat_tables([messages(200, queue_id=queue) for queue in range(3)])
    one, two = tmp_path / "one", tmp_path / "two"
    fill(one, table, BackfillOptions(segment_bytes=4000))
    path = str(one / "table.parquet")
    options = BackfillOptions(segment_bytes=4000)
    run_backfill(new_run(workers=2), tier_at(two), path, options, task_bytes=10_000)
    assert contents(tier_at(one)) == contents(tier_at(two))


def test_a_chunk_log_over_memory_holds_the_same(tmp_path: Path) -> None:
    table = pa.concat_tables([messages(80, queue_id=queue, first=3) for queue in range(2)])
    tier = memory_tier(tmp_path)
    options = BackfillOptions(segment_bytes=3000)
    fill(tmp_path, table, options, tier=tier)
    assert given(found(tmp_path, tier)) == given(table)
    assert damage(tier) == []
    more = messages(40, queue_id=1, first=83)
    fill(tmp_path, more, options, tier=tier, name="more")
    assert given(found(tmp_path, tier)) == given(pa.concat_tables([table, more]))
    assert damage(tier) == []


def test_frames_are_tables_too_and_the_same_rows_are_not_written_twice(tmp_path: Path) -> None:
    table = messages(10)
    tier = tier_at(tmp_path)
    first = backfill_frame(new_run(), tier, table, tmp_path / "staging")
    again = backfill_frame(new_run(), tier, table, tmp_path / "staging")
    assert (first["done_before"], again["done_before"]) == (False, True)
    frame = pd.DataFrame(
        {"topic": ["p", "p"], "body": [b"1", b"2"], "keys": [["k"], None], "queue_id": [1, 1]}
    )
    frame["store_timestamp"] = pd.to_datetime([START_MS, START_MS + 1], unit="ms", utc=True)
    backfill_frame(new_run(), tier, frame, tmp_path / "staging")
    back = found(tmp_path, topic="p")
    assert back["body"].to_pylist() == [b"1", b"2"]
    assert back["store_timestamp"].cast(pa.int64()).to_pylist() == [
        START_MS * 1000,
        (START_MS + 1) * 1000,
    ]
    with pytest.raises(Invalid, match="found dict"):
        backfill_frame(new_run(), tier, {}, tmp_path / "staging")


def test_our_store_serves_it_by_offset_time_and_key(tmp_path: Path) -> None:
    fill(tmp_path, messages(40, first=10))
    config: StoreConfig = config_from_properties(
        {
            **SMALL_INDEX,
            "brokerName": BROKER,
            "brokerClusterName": CLUSTER,
            "tieredStorageLevel": StorageLevel.FORCE.name,
            "tieredStoreAdopt": "true",  # a history that this store did not write
            "storePathRootDir": str(tmp_path / "local"),
            "tieredStoreFilePath": str(tmp_path / "tier"),
        },
        origin="test",
    ).config
    store = TieredMessageStore(
        DefaultMessageStore(config),
        config,
        PosixProvider(config.tier_file_path, CLUSTER, fsync=False),
        DefaultMetadataStore(tmp_path / "state/config/tieredStoreMetadata.json", BROKER),
        tmp_path / "state",
    )
    store.load()
    try:
        got = store.get_message("group", "orders", 0, 17, 8)
        assert [message.queue_offset for message in got.messages] == list(range(17, 25))
        assert bytes(got.messages[0].body) == b"body 17 of 0"
        by_time = store.get_offset_in_queue_by_time("orders", 0, START_MS + 33, BoundaryType.LOWER)
        assert by_time == 33
        found_ = store.query_message("orders", "key-0-21", 5, 0, 2**62)
        assert [message.queue_offset for message in found_] == [21]
    finally:
        store.shutdown()
