"""gRPC clients continue after the broker was killed and restarted. They reopen their streams, and
receive the unacknowledged messages."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.clients.collected import bodies, wait_for_messages
from tests.kit.clients.grpc_lab import POLL, WITH_PUSH, Lab, start_client, write_groups
from tests.kit.clients.program import ClientFailed
from tests.kit.clients.served import SETTINGS, Served


@pytest.mark.parametrize("language", WITH_PUSH)
def test_clients_go_on_when_the_broker_was_killed(language: str, tmp_path: Path) -> None:
    write_groups(tmp_path)
    with BrokerProcess(tmp_path, {**SETTINGS, **POLL}) as broker:
        with start_client(language) as client:
            lab = Lab(language, client, Served(broker.namesrv, broker.grpc))
            topic = lab.topic("restart")
            lab.start_producer(topic)
            lab.call("start_push", name="c", group=f"push_{language}", topic=topic)
            sent = [f"before {number}" for number in range(10)]
            for body in sent:
                lab.send(topic, body)
            wait_for_messages(client, topic, 10)
            broker.kill()
            broker.start()
            for number in range(10):
                sent.append(f"after {number}")
                send_until_taken(lab, topic, sent[-1])
            found: set[str] = set()
            for _ in range(120):
                found = set(bodies(client.call("collected", topic=topic)))
                if found == set(sent):
                    break
                time.sleep(0.5)
            assert found == set(sent)
        assert broker.stop() == 0, broker.log()


def send_until_taken(lab: Lab, topic: str, body: str) -> None:
    for _ in range(60):
        try:
            lab.send(topic, body)
            return
        except ClientFailed:
            time.sleep(0.5)
    raise AssertionError(f"{body} was never taken")
