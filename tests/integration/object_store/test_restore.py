"""A broker with a tier in S3 loses its machine. Its store is restored from the bucket."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.command_line import Ran, tieredstore
from tests.kit.object_store.servers import REGION, ObjectStore
from tests.kit.waiting import wait_for
from tieredstore.disk.file_archive import unpack_files
from tieredstore.tier.backup import BACKUP_VERSION

COUNT = 20
INTERVAL_MS = "200"
ROWS = ("--output", "ndjson")


def tier_of(store: ObjectStore) -> dict[str, str]:
    """Return the lines of a broker.conf that configure the tier."""
    return {
        "tieredBackendServiceProvider": "s3",
        "objectStoreEndpoint": store.endpoint,
        "objectStoreBucket": store.bucket,
        "tieredStoreS3Prefix": "tier",
        "tieredStoreS3Region": REGION,
        "tieredStoreS3PathStyle": "path",
        "tieredStoreGroupCommitTimeout": "0",
        "tieredStoreAdaptiveCommitMaxInterval": "0",
        "tieredStoreBackupInterval": INTERVAL_MS,
    }


def at(broker: BrokerProcess, *words: object) -> Ran:
    ran = tieredstore(*words, "--at", broker.addresses["remoting"])
    assert ran.code == 0, ran.err
    return ran


def offsets_in(url: str, topic: str) -> list[int]:
    ran = tieredstore("cat", "--tier", url, "--topic", topic, "--output", "ndjson")
    return sorted(row["queue_offset"] for row in ran.rows) if ran.code == 0 else []


def is_there(store: ObjectStore, text: str) -> Callable[[], bool]:
    return lambda: any(text in key for key in store.keys("tier/"))


def test_l16_a_broker_that_was_killed_is_restored_from_its_bucket(
    versitygw: ObjectStore, tmp_path: Path
) -> None:
    url = versitygw.url("tier")
    names = ("--broker", "labBroker", "--cluster", "DefaultCluster")
    with BrokerProcess(tmp_path, tier_of(versitygw)) as broker:
        at(broker, "topic", "create", "orders", "--queues", "1")
        at(broker, "send", "orders", *(f"old {number}" for number in range(COUNT)))
        wait_for(lambda: offsets_in(url, "orders") == list(range(COUNT)))
        wait_for(is_there(versitygw, "/.backups/"))
        at(broker, "topic", "create", "made", "--queues", "3")
        wait_for(lambda: "made" in backed_up_topics(versitygw))
        broker.kill()
        shutil.rmtree(tmp_path / "store")
        restored = tieredstore(
            "restore", "--tier", url, "--store", tmp_path / "store", "--take-over", *names,
            "--output", "json",
        )  # fmt: skip
        assert restored.code == 0, restored.err
        assert {row["topic"]: row["end_offset"] for row in restored.record["queue_ends"]} == {
            "orders": COUNT
        }
        broker.start()
        assert {"orders", "made"} <= {
            row["topic"] for row in at(broker, "topic", "list", *ROWS).rows
        }
        at(broker, "send", "orders", "new")
        shown = at(broker, "tail", "orders", "--from-start", "--no-follow", *ROWS).rows
        assert [(row["queue_offset"], row["body"]) for row in shown] == [
            *((number, f"old {number}") for number in range(COUNT)),
            (COUNT, "new"),
        ]
        wait_for(lambda: offsets_in(url, "orders") == list(range(COUNT + 1)))
        assert broker.stop() == 0


def backed_up_topics(store: ObjectStore) -> str:
    """Return the topics of the newest backup as JSON, or an empty text if no backup exists."""
    newest = max((key for key in store.keys("tier/") if key.endswith(".config")), default=None)
    if newest is None:
        return ""
    client = store.client()
    try:
        data = client.get_object(Bucket=store.bucket, Key=newest)["Body"].read()
    except client.exceptions.NoSuchKey:  # a newer one is there
        return ""
    finally:
        client.close()
    return unpack_files(data, BACKUP_VERSION, newest).contents["topics.json"].decode()
