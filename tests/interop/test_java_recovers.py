"""Java and our store recover the same content from a store whose process was killed."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.java import JavaTools, Manifest, copy_tree, key_queries
from tests.kit.java_messages import BROKER_CONF
from tests.kit.local_stores import PUBLIC_A_SIZES
from tests.kit.recovered import read_everything
from tieredstore.config import StoreConfig, config_from_properties
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.record import decode_record

KILLED = """
import json, os, sys
from tests.kit.java_messages import BROKER_CONF, fill
from tieredstore.clock import SystemClock
from tieredstore.config import config_from_properties
from tieredstore.local.message_store import DefaultMessageStore

class Still(SystemClock):
    # Java begins 3 s before the checkpoint and drops the last index files: where these puts
    # take longer, its index does not have what was put before.
    at_ms = SystemClock().now_ms()

    def now_ms(self):
        return self.at_ms

root, wanted, flushed = sys.argv[1], sys.argv[2], int(sys.argv[3])
conf = {**BROKER_CONF, "storePathRootDir": root}
store = DefaultMessageStore(config_from_properties(conf, origin="test").config, Still())
store.load()
store.start()
rows = []
for number, row in enumerate(fill(store)):
    rows.append(row)
    if number == flushed:
        store.flush()
with open(wanted, "w") as file:
    json.dump(rows, file)
os.kill(os.getpid(), 9)
"""


def kill_in_the_middle(root: Path, flushed: int) -> list[dict[str, Any]]:
    """Put 700 messages in a process, then kill it. `flushed`: number of messages before the
    flush."""
    wanted = root / "wanted.json"
    root.mkdir()
    command = [sys.executable, "-c", KILLED, str(root / "store"), str(wanted), str(flushed)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert (root / "store" / "abort").exists()
    rows: list[dict[str, Any]] = json.loads(wanted.read_bytes())
    return rows


@pytest.mark.parametrize("flushed", [-1, 300])
@pytest.mark.parametrize("is_recovered", [True, False])
def test_java_reads_a_store_of_ours_that_was_killed(
    java: JavaTools, tmp_path: Path, is_recovered: bool, flushed: int
) -> None:
    root = tmp_path / "root"
    wanted = kill_in_the_middle(root, flushed)
    if is_recovered:
        conf = {**BROKER_CONF, "storePathRootDir": str(root / "store")}
        store = DefaultMessageStore(config_from_properties(conf, origin="test").config)
        store.load()
        store.start()
        store.shutdown()
        assert not (root / "store" / "abort").exists()
    manifest: Manifest = {"brokerConf": BROKER_CONF, "messages": wanted}

    report = java.check("local", root, manifest, tmp_path / "check")

    assert report.passed, report.text
    assert report.wanted == report.right == len(wanted) == 700
    assert report.key_queries == report.key_queries_right == key_queries(wanted) > 700


def test_java_recovers_from_its_own_crash_what_we_recover(
    java: JavaTools, crash_c: Path, tmp_path: Path
) -> None:
    copy_tree(crash_c / "before" / "store", tmp_path / "java" / "store")
    copy_tree(crash_c / "before" / "store", tmp_path / "ours" / "store")
    ours = tmp_path / "ours" / "store"
    store = DefaultMessageStore(StoreConfig(store_path_root_dir=str(ours), **PUBLIC_A_SIZES))
    store.load()
    store.start()
    found = read_everything(store)
    store.shutdown()
    wanted = []
    for (topic, queue_id), records in found.items():
        for offset, record in enumerate(records):
            message = decode_record(record)
            wanted.append(
                {
                    "topic": topic,
                    "queueId": queue_id,
                    "queueOffset": offset,
                    "uniqKey": message.uniq_key,
                    "keys": " ".join(message.keys) or None,
                    "bodySHA256": hashlib.sha256(message.body).hexdigest(),
                    "storeTimestamp": message.store_timestamp_ms,
                }
            )
    conf = dict(
        line.strip().split("=", 1)
        for line in (crash_c / "broker.conf").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    manifest: Manifest = {"brokerConf": conf, "messages": wanted}
    queues = {}
    for name in ("java", "ours"):
        report = java.check("local", tmp_path / name, manifest, tmp_path / f"check-{name}")
        assert report.passed, report.text
        assert report.wanted == report.right == len(wanted) > 1700
        assert report.key_queries == report.key_queries_right
        saved = json.loads((tmp_path / f"check-{name}" / "out" / "report-local.json").read_bytes())
        queues[name] = {
            (queue["topic"], queue["queueId"]): (queue["localMin"], queue["localMax"])
            for queue in saved["queueState"]["queues"]
            if queue["topic"].startswith("crash_")
        }
    ends = {key: (0, len(records)) for key, records in found.items()}
    assert queues["java"] == queues["ours"] == ends
