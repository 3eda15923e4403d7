"""rocketmq-exporter runs against a broker. The tests compare the exporter's series with the
clients' actions, and with the series of a Java broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.clients.collected import FAST_CLIENT
from tests.kit.clients.program import Program
from tests.kit.clients.served import Served, our_broker
from tests.kit.clients.tools import Tool, run_tool, tool_or_skip
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.slow
TOPIC = "ExportedTopic"
GROUP = "ExportedGroup"
PRODUCERS = "ExportedProducers"
SENT = 20
TASKS = (
    "collectTopicOffset",
    "collectProducer",
    "collectConsumerOffset",
    "collectBrokerStatsTopic",
    "collectBrokerStats",
    "collectBrokerRuntimeStats",
)
JAVA_NAMES = (
    "rocketmq_broker_qps",
    "rocketmq_broker_tps",
    "rocketmq_client_consume_fail_msg_count",
    "rocketmq_client_consume_fail_msg_tps",
    "rocketmq_client_consume_ok_msg_tps",
    "rocketmq_client_consume_rt",
    "rocketmq_client_consumer_pull_rt",
    "rocketmq_client_consumer_pull_tps",
    "rocketmq_group_count",
    "rocketmq_group_get_latency_by_storetime",
)
"""Names of the series of a Java broker 5.5.0 whose values depend on the time. All its other series
are in EXPECTED."""
_IN_TOPIC = {"broker": "labBroker", "topic": TOPIC}
_OF_GROUP = {**_IN_TOPIC, "group": GROUP}
_RETRY = {"topic": f"%RETRY%{GROUP}"}


def is_all(value: float) -> bool:
    return value == SENT


def is_one(value: float) -> bool:
    return value == 1


def is_none(value: float) -> bool:
    return value == 0


def is_some(value: float) -> bool:
    return value > 0


EXPECTED: dict[str, tuple[dict[str, str], Callable[[float], bool]]] = {
    "rocketmq_producer_offset": (_IN_TOPIC, is_all),
    "rocketmq_producer_tps": (_IN_TOPIC, is_some),
    "rocketmq_producer_message_size": (_IN_TOPIC, is_some),
    "rocketmq_producer_count": ({"group": PRODUCERS}, is_one),
    "rocketmq_consumer_offset": (_OF_GROUP, is_all),
    "rocketmq_consumer_tps": (_OF_GROUP, is_some),
    "rocketmq_consumer_message_size": (_OF_GROUP, is_some),
    "rocketmq_send_back_nums": (_OF_GROUP, is_one),
    "rocketmq_group_diff": ({"topic": TOPIC, "group": GROUP}, is_none),
    "rocketmq_group_retrydiff": (_RETRY, is_none),
    "rocketmq_topic_retry_offset": (_RETRY, is_one),
}
"""Labels and value of each series, by name."""


class Sample(NamedTuple):
    """One metric series of the exporter."""

    name: str
    labels: dict[str, str]
    value: float


def read(tool: Tool) -> list[Sample]:
    families = text_string_to_metric_families(tool.get("/metrics"))
    return [
        Sample(sample.name, sample.labels, sample.value)
        for family in families
        for sample in family.samples
    ]


@contextmanager
def exporter(jar: Path, folder: Path, namesrv: str) -> Iterator[Tool]:
    """Run the exporter. It collects every five seconds instead of every minute."""
    crons = [f"--task.{task}.cron=0/5 * * * * ?" for task in TASKS]
    options = [f"--rocketmq.config.namesrvAddr={namesrv}", "--grpc.server.port=0", *crons]
    with run_tool(jar, folder, *options, port_option="server.port") as tool:
        yield tool


def test_the_exporter_shows_what_clients_did(
    served: Served, java_remoting: Program, tmp_path: Path
) -> None:
    namesrv = served.namesrv
    with (
        exporter(tool_or_skip("rocketmq-exporter"), tmp_path, namesrv) as tool,
        java_remoting.start("Producers", "Consumers", options=FAST_CLIENT) as client,
    ):
        client.call("start_producer", name="p", namesrv=namesrv, group=PRODUCERS)
        client.call("send", name="p", topic=TOPIC, body="first")  # it makes the topic
        client.call("start_push", name="c", namesrv=namesrv, group=GROUP, topics=[TOPIC], fail=1)
        for number in range(1, SENT):
            body = "bad" if number == 7 else f"body {number}"
            client.call("send", name="p", topic=TOPIC, body=body)
        missing = {*JAVA_NAMES, *EXPECTED}  # until each was right once

        def all_came() -> bool:
            samples = read(tool)
            missing.difference_update({sample.name for sample in samples} & {*JAVA_NAMES})
            for sample in samples:
                for name, (labels, is_right) in EXPECTED.items():
                    if (
                        sample.name == name
                        and labels.items() <= sample.labels.items()
                        and is_right(sample.value)
                    ):
                        missing.discard(name)
            return not missing

        try:
            wait_for(all_came)
        except AssertionError:
            raise AssertionError(f"missing: {sorted(missing)}\n{tool.get('/metrics')}") from None
        assert len(client.call("received", name="c")) == SENT + 1


def test_the_exporter_parses_the_figures_of_our_broker(
    java_remoting: Program, tmp_path: Path
) -> None:
    """The exporter parses our broker's figures. It cannot parse those of the Java broker 5.5.0,
    because they lack `brokerVersion`."""
    with (
        our_broker(tmp_path / "broker") as served,
        exporter(tool_or_skip("rocketmq-exporter"), tmp_path, served.namesrv) as tool,
        java_remoting.start("Producers") as client,
    ):
        client.call("start_producer", name="p", namesrv=served.namesrv, group=PRODUCERS)
        for number in range(SENT):
            client.call("send", name="p", topic=TOPIC, body=f"body {number}")

        def figures() -> dict[str, float]:
            prefix = "rocketmq_brokeruntime_"
            samples = [sample for sample in read(tool) if sample.name.startswith(prefix)]
            return {sample.name.removeprefix(prefix): sample.value for sample in samples}

        wait_for(lambda: figures().get("putmessage_times_total") == SENT)
        found = figures()
        assert len(found) == 63
        assert found["msg_put_total_today_now"] == SENT
        assert found["put_message_size_total"] == found["commitlog_maxoffset"] > 0
        assert found["put_message_average_size"] == found["put_message_size_total"] / SENT
        assert found["commitlogdir_capacity_total"] > found["commitlogdir_capacity_free"] > 0
