"""The published Java broker reads a tier that `tieredstore backfill` made from Parquet tables."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import tieredstore
from tests.kit.java import JavaTools, Manifest, key_queries, write_broker_conf
from tests.kit.java import tieredstore as run_tieredstore
from tests.kit.offloaded import Offloaded
from tieredstore.message.crc import CRC_MASK, crc32
from tieredstore.scan.arrow.schema import TYPES

PLAIN = "made-of-bodies"
SEGMENT_BYTES = "300000"


def backfill(table: pa.Table, name: str, root: Path, manifest: Manifest, *options: str) -> None:
    path = root / f"{name}.parquet"
    pq.write_table(table, path, row_group_size=300)
    run_tieredstore(
        "backfill", "--from", path, "--tier", f"file://{root / 'tiered'}",
        "--state", root / "store", "--config", write_broker_conf(root / "broker.conf", manifest),
        "--work", root / "work", "--segment-bytes", SEGMENT_BYTES, "--workers", "1", *options,
        "--quiet",
    )  # fmt: skip


def messages_of(rows: pa.Table) -> list[dict[str, Any]]:
    """Convert rows of a table to the form of messages in the manifest."""
    return [
        {
            "topic": row["topic"],
            "queueId": row["queue_id"],
            "queueOffset": row["queue_offset"],
            "uniqKey": dict(row["properties"]).get("UNIQ_KEY"),
            "keys": dict(row["properties"]).get("KEYS"),
            "tags": row["tags"],
            "properties": dict(row["properties"]),
            "bodySHA256": hashlib.sha256(row["body"]).hexdigest(),
            "bodyLength": len(row["body"]),
            "bodyCRC": crc32(row["body"]) & CRC_MASK,
            "storeTimestamp": int(row["store_timestamp"].timestamp() * 1000),
            "bornTimestamp": int(row["born_timestamp"].timestamp() * 1000),
            "bornHost": f"/{row['born_host']}",
            "storeHost": f"/{row['store_host']}",
            "flag": row["flag"],
            "reconsumeTimes": row["reconsume_times"],
            "tiered": {},
        }
        for row in rows.to_pylist()
    ]


def test_java_reads_every_message_and_finds_every_key_of_tables_that_were_backfilled(
    java: JavaTools, offloaded: Offloaded, tmp_path: Path
) -> None:
    """Java reads every message and finds every key of backfilled tables. Two tables have the
    fixture's messages, and the second table continues the first. A third table has only bodies."""
    tier = tieredstore.open(f"file://{offloaded.root / 'tiered'}", state=offloaded.root / "store")
    rows = tier.scan(topic_pattern=".*", columns=list(TYPES)).to_arrow()
    early = pc.less(rows["queue_offset"], 40)
    given = offloaded.manifest
    backfill(rows.filter(early), "early", tmp_path, given)
    backfill(rows.filter(pc.invert(early)), "late", tmp_path, given)
    bodies = pa.table({"body": [b"body %d" % number for number in range(50)]})
    backfill(bodies, "bodies", tmp_path, given, "--topic", PLAIN, "--queues", "3")

    made = tieredstore.open(f"file://{tmp_path / 'tiered'}", state=tmp_path / "store")
    plain = made.scan(PLAIN, columns=list(TYPES)).to_arrow()
    assert sorted(plain["body"].to_pylist()) == sorted(bodies["body"].to_pylist())
    wanted = [*messages_of(rows), *messages_of(plain)]
    manifest = {"brokerConf": given["brokerConf"], "messages": wanted}

    report = java.check("tiered", tmp_path, json.loads(json.dumps(manifest)), tmp_path / "check")

    assert report.passed, report.text
    assert report.wanted == report.right == len(wanted) > 2000
    assert report.key_queries == report.key_queries_right == key_queries(wanted) > 0
