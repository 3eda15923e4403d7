"""Java's client and mqadmin read a tier through a read-only broker. Java wrote the tier, or the
tier is in a bucket that a broker still writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.clients.collected import FAST_CLIENT, wait_for_messages
from tests.kit.clients.program import ClientProcess, Program
from tests.kit.clients.reading_broker import reading_broker
from tests.kit.object_store.servers import REGION, ObjectStore
from tests.kit.waiting import wait_for
from tieredstore.testing.broker import Broker

SOON = {"readOnlyRefreshInterval": "200"}


@pytest.fixture(scope="module")
def client(java_remoting: Program) -> Iterator[ClientProcess]:
    parts = ("Admin", "Collectors", "Producers", "Readers")
    with java_remoting.start(*parts, options=FAST_CLIENT) as process:
        yield process


def mqadmin(client: ClientProcess, namesrv: str, *arguments: str) -> list[list[str]]:
    """Run an mqadmin command. Return the words of each printed line."""
    printed: str = client.call("mqadmin", args=[*arguments, "-n", namesrv])
    assert "Exception" not in printed, printed
    return [line.split() for line in printed.splitlines() if line.strip()]


def test_a_push_consumer_is_given_the_history_that_java_wrote(
    client: ClientProcess, tmp_path: Path, public_a: Path, public_a_manifest: dict[str, Any]
) -> None:
    wanted = {
        (message["queueId"], message["queueOffset"]): message["bodySHA256"]
        for message in public_a_manifest["messages"]
        if message.get("tiered") and message["topic"] == "pub_normal"
    }
    with reading_broker(f"file://{public_a / 'tiered'}", tmp_path / "reader") as addresses:
        namesrv = addresses["namesrv"]
        client.call("collect", name="j", namesrv=namesrv, group="history", topics=["pub_normal"])
        found = wait_for_messages(client, "pub_normal", len(wanted))
        assert {(m["queue_id"], m["queue_offset"]): m["sha256"] for m in found} == wanted
        assert len(found) == len(wanted)
        ends = {queue_id: 1 + max(o for q, o in wanted if q == queue_id) for queue_id in (0, 1)}
        rows = mqadmin(client, namesrv, "topicStatus", "-t", "pub_normal")
        assert [row[:4] for row in rows if row[0] == "labBroker"] == [
            ["labBroker", str(queue_id), "0", str(end)] for queue_id, end in ends.items()
        ]
        rows = mqadmin(client, namesrv, "queryMsgByKey", "-t", "pub_normal", "-k", "pubn-K0")
        assert [row[1:3] for row in rows if row[0].startswith("FD00")] == [["0", "0"]]
        client.call("stop_collecting", name="j")


def test_a_bucket_that_is_still_written_is_served_to_a_live_consumer(
    client: ClientProcess, tmp_path: Path, versitygw: ObjectStore
) -> None:
    settings = {
        "tieredBackendServiceProvider": "s3",
        "objectStoreBucket": versitygw.bucket,
        "tieredStoreS3Prefix": "tier",
        "objectStoreEndpoint": versitygw.endpoint,
        "tieredStoreS3Region": REGION,
        "tieredStoreS3PathStyle": "path",
    }
    with Broker(tmp_path / "writer", settings) as writer:
        client.call("start_producer", name="p", namesrv=writer.namesrv, group="p")

        def send(*numbers: int) -> None:
            """Send messages, and wait for their upload."""
            for number in numbers:
                client.call("send", name="p", topic="Live", body=f"b{number}", keys=f"k{number}")
            writer.flush_tier()

        send(*range(10))
        with reading_broker(versitygw.url(), tmp_path / "reader", SOON) as addresses:
            namesrv = addresses["namesrv"]
            client.call("collect", name="s", namesrv=namesrv, group="g", topics=["Live"])
            wait_for_messages(client, "Live", 10)
            send(*range(10, 20))
            found = wait_for_messages(client, "Live", 20)
            assert sorted(m["body"] for m in found) == sorted(f"b{n}" for n in range(20))
            progress = ("consumerProgress", "-g", "g")
            wait_for(
                lambda: (
                    [
                        sum(
                            int(row[3])
                            for row in mqadmin(client, namesrv, *progress)
                            if "Live" in row
                        )
                    ]
                    == [20]
                )
            )
            client.call("stop_collecting", name="s")
