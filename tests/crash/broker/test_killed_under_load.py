"""A broker is killed every 20 s under the load of Java clients, and the checker finds no fault."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.clients.collected import FAST_CLIENT
from tests.kit.clients.program import ClientProcess, Program
from tests.kit.fault_proxy.faults import cut_body, lose_reply, lose_request, slow_down
from tests.kit.fault_proxy.http import Credentials, Fault
from tests.kit.fault_proxy.proxy import FaultProxy
from tests.kit.object_store.fixtures import new_bucket
from tests.kit.object_store.servers import CREDENTIALS, REGION, Servers
from tests.kit.queue_checker.checker import check_history
from tests.kit.queue_checker.loads import GrpcLoad, Load, RemotingLoad
from tests.kit.queue_checker.run import read_all, run_loads
from tieredstore.broker.settings import load_broker_settings
from tieredstore.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroupManager

LENGTHS = [
    pytest.param(2, id="one-minute"),
    pytest.param(15, id="five-minutes", marks=pytest.mark.slow),
]
"""Durations of the test in minutes."""
FAULTS: list[tuple[Fault, tuple[str, ...], range]] = [
    (lose_request(), ("PutObject",), range(3, 10**6, 11)),
    (lose_reply(), ("PutObject",), range(7, 10**6, 13)),
    (slow_down(), ("PutObject", "GetObject"), range(5, 10**6, 17)),
    (cut_body(10), ("GetObject",), range(2, 10**6, 7)),
]
"""Faults that the proxy injects during the whole test. Each fault has the S3 operations and the
request numbers (from 1) that it affects."""
FIFO_TOPIC, FIFO_GROUP = "CheckedFifo", "checked_fifo"


@pytest.fixture
def remoting(java_remoting: Program) -> Iterator[ClientProcess]:
    """Start a client process for one test. The process remembers all messages that it sent and
    received."""
    with java_remoting.start("Loads", "Collectors", "Readers", options=FAST_CLIENT) as process:
        yield process


@pytest.fixture
def grpc(java_grpc: Program) -> Iterator[ClientProcess]:
    with java_grpc.start("GroupLoads") as process:
        yield process


@pytest.mark.parametrize("kills", LENGTHS)
def test_nothing_is_lost_over_a_posix_tier(
    remoting: ClientProcess, grpc: ClientProcess, tmp_path: Path, kills: int
) -> None:
    _check(remoting, grpc, tmp_path, {}, kills)


@pytest.mark.parametrize("kills", LENGTHS)
def test_nothing_is_lost_over_an_object_store_that_fails(
    remoting: ClientProcess, grpc: ClientProcess, tmp_path: Path, servers: Servers, kills: int
) -> None:
    bucket = new_bucket(servers, "versitygw")
    with FaultProxy(bucket.endpoint, Credentials(*CREDENTIALS)) as proxy:
        rules = [proxy.inject(fault, *names, calls=calls) for fault, names, calls in FAULTS]
        settings = {
            "tieredBackendServiceProvider": "s3",
            "objectStoreEndpoint": proxy.endpoint,
            "objectStoreBucket": bucket.bucket,
            "tieredStoreS3Region": REGION,
            "tieredStoreS3PathStyle": "path",
        }
        _check(remoting, grpc, tmp_path, settings, kills)
        assert all(rule.hits for rule in rules)


def _check(
    remoting: ClientProcess,
    grpc: ClientProcess,
    folder: Path,
    settings: Mapping[str, str],
    kills: int,
) -> None:
    _write_fifo_config(folder / "store" / "config")
    loads: list[Load] = [
        RemotingLoad(remoting, f"Checked-{folder.name}"),
        GrpcLoad(grpc, FIFO_TOPIC, FIFO_GROUP),
    ]
    with BrokerProcess(folder, settings) as broker:
        histories = run_loads(loads, lambda topic: read_all(remoting, broker, topic), broker, kills)
        for topic, history in histories.items():
            assert (topic, check_history(history)[:20]) == (topic, []), broker.log()
            assert len(history.acknowledged) > 20 * kills  # a loaded machine sends little
        # the same, from the tier what it has
        assert broker.stop() == 0, broker.log()
        broker.start(tieredStorageLevel="FORCE")
        for topic, history in histories.items():
            assert read_all(remoting, broker, topic) == history.read


def _write_fifo_config(folder: Path) -> None:
    """Write the settings of a topic with message groups, and of a consumer group that consumes them
    in order."""
    topic = {"topicName": FIFO_TOPIC, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    attributes = {"attributes": {"message.type": "FIFO"}}
    table = {"topicConfigTable": {FIFO_TOPIC: topic | attributes}}
    folder.mkdir(parents=True)
    (folder / "topics.json").write_text(json.dumps(table))
    groups = SubscriptionGroupManager(folder, load_broker_settings({}, "checked"))
    groups.update_group(
        SubscriptionGroupConfig(
            group_name=FIFO_GROUP,
            consume_message_orderly=True,
            attributes={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
        )
    )
    (folder / "subscriptionGroup.json").write_bytes(groups.encode())
