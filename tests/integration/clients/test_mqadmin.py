"""mqadmin 5.5.0 runs against a broker. The tests compare the output of each command with the
correct output. The slow run also tests the Java broker, which is the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit.clients.program import ClientProcess, Program
from tests.kit.clients.served import Served
from tests.kit.waiting import wait_for

TOPIC = "AdminTopic"
GROUP = "AdminGroup"
PRODUCERS = "AdminProducers"


@dataclass(frozen=True, slots=True)
class Lab:
    """mqadmin and a topic of two queues. The second queue has two messages. A live producer and a
    live consumer are connected, and the consumer has consumed both messages."""

    client: ClientProcess
    namesrv: str
    cluster: str
    address: str
    sent: list[dict[str, Any]]

    def run(self, *arguments: str) -> str:
        """Run one command. Return its output, which must show no exception."""
        printed = self.run_anyway(*arguments)
        assert "Exception" not in printed, printed
        return printed

    def run_anyway(self, *arguments: str) -> str:
        """Run one command, which may fail. Return its output."""
        printed: str = self.client.call("mqadmin", args=[*arguments, "-n", self.namesrv])
        return printed

    def rows(self, *arguments: str) -> list[list[str]]:
        """Run one command. Return the words of each line that is not empty."""
        return [line.split() for line in self.run(*arguments).splitlines() if line.strip()]


@pytest.fixture(scope="module")
def lab(served: Served, java_remoting: Program) -> Iterator[Lab]:
    """The lab, after its consumer has reported its offsets."""
    with java_remoting.start("Admin", "Producers", "Collectors") as client:
        bare = Lab(client, served.namesrv, "", "", [])
        [row] = [row for row in bare.rows("clusterList") if "labBroker" in row]
        cluster, _, _, address = row[:4]
        made = Lab(client, served.namesrv, cluster, address, [])
        assert "success" in made.run(
            "updateTopic", "-b", address, "-t", TOPIC, "-r", "2", "-w", "2"
        )
        client.call("start_producer", name="p", namesrv=served.namesrv, group=PRODUCERS)
        for number in (1, 2):
            fields: dict[str, Any] = {
                "body": f"body {number}",
                "tag": f"Tag{number}",
                "keys": f"key{number}",
            }
            place = client.call("send_to_queue", name="p", topic=TOPIC, queue_id=1, **fields)
            made.sent.append(place)
        client.call("collect", name="c", namesrv=served.namesrv, group=GROUP, topics=[TOPIC])
        wait_for(lambda: client.call("collected_count", topic=TOPIC) == 2)
        progress = ("consumerProgress", "-g", GROUP)
        wait_for(
            lambda: [TOPIC, "labBroker", "1", "2", "2"] in [row[:5] for row in made.rows(*progress)]
        )
        yield made


def test_cluster_list(lab: Lab) -> None:
    [row] = [row for row in lab.rows("clusterList") if "labBroker" in row]
    assert row[:5] == [lab.cluster, "labBroker", "0", lab.address, "V5_5_0"]
    assert row[-1] == "true"
    assert 0 <= float(row[-2]) <= 1  # space
    [row] = [row for row in lab.rows("clusterList", "-m") if "labBroker" in row]
    assert row[:2] == [lab.cluster, "labBroker"]
    assert all(number.isdigit() for number in row[2:])


def test_topics_are_made_changed_listed_and_deleted(lab: Lab) -> None:
    made = lab.run("updateTopic", "-c", lab.cluster, "-t", "AdminNew", "-a", "+reserve.time=7")
    assert f"create topic to {lab.address} success." in made
    assert "readQueueNums=8, writeQueueNums=8, perm=RW-" in made
    lab.run("updateTopic", "-b", lab.address, "-t", "AdminNew", "-r", "4", "-w", "3", "-p", "4")
    wait_for(lambda: ["AdminNew"] in lab.rows("topicList"))
    [row] = [row for row in lab.rows("topicRoute", "-t", "AdminNew", "-l") if "labBroker" in row]
    assert row == [lab.cluster, "labBroker", f"{{0={lab.address}}}", "4", "3", "4"]
    gone = lab.run("deleteTopic", "-t", "AdminNew", "-c", lab.cluster)
    assert f"delete topic [AdminNew] from cluster [{lab.cluster}] success." in gone
    assert "delete topic [AdminNew] from NameServer success." in gone
    assert ["AdminNew"] not in lab.rows("topicList")


def test_topic_list_with_groups(lab: Lab) -> None:
    assert [lab.cluster, TOPIC, GROUP] in lab.rows("topicList", "-c")
    assert lab.rows("topicClusterList", "-t", TOPIC) == [[lab.cluster]]


def test_topic_route(lab: Lab) -> None:
    printed = lab.run("topicRoute", "-t", TOPIC)
    assert f'0:"{lab.address}"' in printed
    assert '"brokerName":"labBroker"' in printed
    assert '"readQueueNums":2' in printed


def test_topic_status(lab: Lab) -> None:
    rows = [row for row in lab.rows("topicStatus", "-t", TOPIC) if row[0] == "labBroker"]
    assert [row[:4] for row in rows] == [
        ["labBroker", "0", "0", "0"],
        ["labBroker", "1", "0", "2"],
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", rows[1][4])


@pytest.mark.parametrize("number", [1, 2])
def test_a_message_is_found_in_four_ways(lab: Lab, number: int) -> None:
    sent = lab.sent[number - 1]
    by_key = ("queryMsgByKey", "-t", TOPIC, "-k", f"key{number}")
    by_unique_key = ("queryMsgByUniqueKey", "-t", TOPIC, "-i", sent["msg_id"])
    found = [
        lab.run("queryMsgById", "-t", TOPIC, "-i", sent["offset_msg_id"]),
        lab.run(*by_unique_key),
        lab.run(
            "queryMsgByOffset", "-t", TOPIC, "-b", "labBroker", "-i", "1", "-o", str(number - 1)
        ),
    ]
    for printed in found:
        shown = dict(re.findall(r"^([A-Z][A-Za-z ]+): +(.+)$", printed, re.MULTILINE))
        assert shown["Topic"] == TOPIC
        assert shown["Tags"] == f"[Tag{number}]"
        assert shown["Keys"] == f"[key{number}]"
        assert (shown["Queue ID"], shown["Queue Offset"]) == ("1", str(number - 1))
        assert shown["Store Host"] == lab.address
        assert f"UNIQ_KEY={sent['msg_id']}" in shown["Properties"]
        assert f"MessageTrack [consumerGroup={GROUP}, trackType=CONSUMED" in printed
    rows = lab.rows(*by_key)
    assert [row[:3] for row in rows[1:]] == [[sent["msg_id"], "1", str(number - 1)]]


def test_broker_status(lab: Lab) -> None:
    shown = dict(
        re.findall(r"^(\w+) *: (.*)$", lab.run("brokerStatus", "-b", lab.address), re.MULTILINE)
    )
    assert shown["brokerVersionDesc"] == "V5_5_0"
    assert shown["brokerActive"] == "true"
    assert int(shown["bootTimestamp"]) > 0
    assert int(shown["earliestMessageTimeStamp"]) > 0
    assert shown["runtime"].startswith("[ 0 days,")


def test_consumer_progress(lab: Lab) -> None:
    printed = lab.run("consumerProgress", "-g", GROUP)
    rows = [line.split() for line in printed.splitlines() if line.startswith(TOPIC)]
    assert [row[1:6] for row in rows] == [
        ["labBroker", "0", "0", "0", "0"],
        ["labBroker", "1", "2", "2", "0"],
    ]
    assert "Consume Diff Total: 0" in printed
    [row] = [row for row in lab.rows("consumerProgress") if row[0] == GROUP]
    assert row[1:5] == ["1", "V5_5_0", "PUSH", "CLUSTERING"]
    assert row[-1] == "0"


def test_stats_all(lab: Lab) -> None:
    def row() -> list[str]:
        [found] = [row for row in lab.rows("statsAll", "-t", TOPIC) if row[0] == TOPIC]
        return found

    wait_for(lambda: row()[5:6] == ["2"])
    assert row()[1:3] == [GROUP, "0"]


def test_messages_are_sent_consumed_and_printed(lab: Lab) -> None:
    lab.run("updateTopic", "-b", lab.address, "-t", "AdminSent", "-r", "2", "-w", "2")
    place = ("-b", "labBroker", "-i", "1")

    def send() -> list[str]:
        text = ("-p", "hello there", "-k", "sent", "-c", "TagS")
        return lab.rows("sendMessage", "-t", "AdminSent", *text, *place)[-1]

    row = send()
    assert row[:3] == ["labBroker", "1", "SEND_OK"]
    printed = lab.run("consumeMessage", "-t", "AdminSent")
    assert f"MSGID: {row[3]} " in printed
    assert "KEYS=sent" in printed
    assert "BODY: hello there" in printed
    printed = lab.run("printMsg", "-t", "AdminSent", "-d", "true")
    assert re.search(r"minOffset=0, maxOffset=1, .*queueId=1", printed)
    assert f"MSGID: {row[3]} " in printed
    assert "BODY: hello there" in printed
    assert "MSGID" not in lab.run("printMsg", "-t", "AdminSent", "-s", "TagT")
    rows = lab.rows("checkMsgSendRT", "-t", "AdminSent", "-a", "3", "-s", "10")
    assert [row[2] for row in rows if row[0] == "labBroker"] == ["true"] * 3


def test_groups_are_made_and_deleted(lab: Lab) -> None:
    made = lab.run("updateSubGroup", "-b", lab.address, "-g", "AdminMade", "-r", "3")
    assert f"create subscription group to {lab.address} success." in made
    assert "groupName=AdminMade" in made
    assert "retryMaxTimes=3" in made
    gone = lab.run("deleteSubGroup", "-b", lab.address, "-g", "AdminMade")
    assert f"delete subscription group [AdminMade] from broker [{lab.address}] success." in gone


def test_settings_are_shown_and_changed(lab: Lab) -> None:
    def shown() -> dict[str, str]:
        printed = lab.run("getBrokerConfig", "-b", lab.address)
        assert f"============{lab.address}============" in printed
        return dict(re.findall(r"^(\w+) += +(.*?) *$", printed, re.MULTILINE))

    settings = shown()
    assert settings["brokerName"] == "labBroker"
    assert settings["transactionTimeOut"] == "1000"
    changed = lab.run(
        "updateBrokerConfig", "-b", lab.address, "-k", "transactionCheckMax", "-v", "7"
    )
    assert f"update broker config success, {lab.address}" in changed
    assert shown()["transactionCheckMax"] == "7"


@pytest.mark.parametrize(
    ("key", "value"),
    [("tieredStoreExcludeTopics", "trace_*,audit"), ("tieredStoreUploadBytesPerSecond", "1000000")],
)
def test_policies_of_the_tier_are_changed_while_the_broker_runs(
    lab: Lab, key: str, value: str
) -> None:
    """mqadmin changes the upload policies of a running broker. Java's command accepts any key, and
    the broker ignores unknown keys."""
    changed = lab.run("updateBrokerConfig", "-b", lab.address, "-k", key, "-v", value)
    assert f"update broker config success, {lab.address}" in changed


def test_a_topic_has_a_storage_level_of_its_own_here_and_not_in_java(
    lab: Lab, served: Served
) -> None:
    change = ["-t", "AdminLevel", "-a", "+tiered.storage.level=NOT_IN_MEM"]
    printed = lab.run_anyway("updateTopic", "-b", lab.address, *change)
    is_ours = bool(served.grpc)
    assert (f"create topic to {lab.address} success." in printed) == is_ours
    assert ("unsupported key: tiered.storage.level" in printed) != is_ours


def test_connections_of_live_clients(lab: Lab) -> None:
    printed = lab.run("consumerConnection", "-g", GROUP)
    assert re.search(r"@c\d+ +127\.0\.0\.1:\d+ +JAVA +V5_5_0", printed)
    assert [TOPIC, "*"] in [line.split() for line in printed.splitlines()]
    assert "ConsumeType: CONSUME_PASSIVELY" in printed
    assert "MessageModel: CLUSTERING" in printed
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in printed
    printed = lab.run("producerConnection", "-g", PRODUCERS, "-t", TOPIC)
    assert re.search(r"0001 +\S+@p +127\.0\.0\.1:\d+ +JAVA +V5_5_0", printed)


def test_connections_of_nobody(lab: Lab) -> None:
    printed = lab.run_anyway("producerConnection", "-g", "nobody", "-t", TOPIC)
    assert "CODE: 1  DESC: the producer group[nobody] not exist" in printed
    assert "command failed" in lab.run_anyway("consumerConnection", "-g", "nobody")


def test_broker_consume_stats(lab: Lab) -> None:
    rows = lab.rows("brokerConsumeStats", "-b", lab.address)
    found = [row[2:7] for row in rows if row[:2] == [TOPIC, GROUP]]
    assert ["labBroker", "1", "2", "2", "0"] in found
    assert rows[-1][:2] == ["Diff", "Total:"]


def test_name_server_config(lab: Lab) -> None:
    printed = lab.run("getNamesrvConfig")
    assert f"============{lab.namesrv}============" in printed
    assert re.search(r"^listenPort += +\d+", printed, re.MULTILINE)


def test_offsets_are_reset_while_the_consumer_lives_and_when_it_is_gone(lab: Lab) -> None:
    name = "AdminReset"
    lab.run("updateTopic", "-b", lab.address, "-t", name, "-r", "1", "-w", "1")
    for number in range(3):
        lab.client.call("send", name="p", topic=name, body=f"again {number}")
    lab.client.call("collect", name="r", namesrv=lab.namesrv, group=name, topics=[name])
    wait_for(lambda: lab.client.call("collected_count", topic=name) == 3)

    def consumed() -> list[str]:
        rows = [row for row in lab.rows("consumerProgress", "-g", name) if row[0] == name]
        return rows[0][3:5] if rows else []

    wait_for(lambda: consumed() == ["3", "3"])
    rows = lab.rows("resetOffsetByTime", "-g", name, "-t", name, "-s", "0")
    assert rows[-1] == ["labBroker", "0", "0"]
    # the consumer begins again, without a start of its own
    wait_for(lambda: lab.client.call("collected_count", topic=name) == 6)
    lab.client.call("stop_collecting", name="r")
    wait_for(lambda: consumed() == ["3", "3"])
    lab.run("resetOffsetByTime", "-g", name, "-t", name, "-s", "0")
    assert consumed() == ["3", "0"]
    lab.run("resetOffsetByTime", "-g", name, "-t", name, "-s", "now")
    assert consumed() == ["3", "3"]


def test_offsets_of_a_group_are_given_to_another_one(lab: Lab) -> None:
    # Java takes only offsets of groups that it knows. mqadmin asks for its retry topic.
    lab.run("updateSubGroup", "-b", lab.address, "-g", "AdminClone")
    lab.run("updateTopic", "-b", lab.address, "-t", "%RETRY%AdminClone", "-r", "1", "-w", "1")
    lab.run("cloneGroupOffset", "-s", GROUP, "-d", "AdminClone", "-t", TOPIC)
    rows = [row for row in lab.rows("consumerProgress", "-g", "AdminClone") if row[0] == TOPIC]
    assert [row[1:5] for row in rows if row[2] == "1"] == [["labBroker", "1", "2", "2"]]


def test_the_store_is_looked_after(lab: Lab) -> None:
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert "success" in lab.run(command, "-b", lab.address)
    printed = lab.run("queryCq", "-t", TOPIC, "-q", "1", "-i", "0", "-c", "5", "-b", lab.address)
    assert "max: 2, min: 0" in printed
    assert printed.count("ConsumeQueueData") == 2


def test_write_permission_keys_and_topic_permissions(lab: Lab) -> None:
    def permission() -> str:
        [row] = [row for row in lab.rows("topicRoute", "-t", TOPIC, "-l") if "labBroker" in row]
        return row[-1]

    assert "wipe write perm of broker[labBroker]" in lab.run("wipeWritePerm", "-b", "labBroker")
    assert permission() == "4"
    lab.run("addWritePerm", "-b", "labBroker")
    assert permission() == "6"
    lab.run("updateKvConfig", "-s", "Admin", "-k", "key", "-v", "value")
    lab.run("deleteKvConfig", "-s", "Admin", "-k", "key")
    lab.run("updateOrderConf", "-t", TOPIC, "-m", "put", "-v", "labBroker:2")
    assert "labBroker:2" in lab.run("updateOrderConf", "-t", TOPIC, "-m", "get")
    lab.run("updateOrderConf", "-t", TOPIC, "-m", "delete")
    lab.run("updateTopicPerm", "-b", lab.address, "-t", TOPIC, "-p", "4")
    assert permission() == "4"
    lab.run("updateTopicPerm", "-b", lab.address, "-t", TOPIC, "-p", "6")
    assert permission() == "6"


def test_what_dashboards_ask(lab: Lab) -> None:
    assert PRODUCERS in lab.run("producer", "-b", lab.address)
    assert GROUP in lab.run("getConsumerConfig", "-g", GROUP)
    lab.run("skipAccumulatedMessage", "-g", GROUP, "-t", TOPIC)
