"""A request for every request code, and the permissions that it requires. A permission is a
resource and a list of actions, any of which is sufficient. In a field or a body, `#name#` stands
for a value of the broker under test, such as an offset or a message id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.kit.record_forms import encode_batch
from tieredstore.broker.remoting.codes import RequestCode as Code
from tieredstore.message.batch import BatchItem

CLUSTER = "Cluster:c1"
ORDERS, SECRET = "Topic:orders", "Topic:secret"
GROUP, FOREIGN = "Group:G", "Group:H"


class Right(NamedTuple):
    """A permission: a resource and actions separated by blanks, any of which is sufficient."""

    resource: str
    actions: str


class Row(NamedTuple):
    """A request and the permissions that it requires. If a request code has several rows, `way`
    names the variant."""

    code: Code
    rights: tuple[Right, ...]
    fields: Mapping[str, object] = {}
    body: object = None
    way: str = ""

    def encode_body(self) -> bytes:
        """Return the body in its encoded form."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body or b""
        return json.dumps(self.body).encode()


def row(code: Code, *rights: str, body: object = None, way: str = "", **fields: object) -> Row:
    """Make a row. An example of `rights` is `Topic:orders Sub Get`."""
    made = tuple(Right(*text.split(" ", 1)) for text in rights)
    return Row(code, made, fields, body, way)


def _send(topic: str) -> dict[str, Any]:
    return {
        "producerGroup": "P",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 0,
        "flag": 0,
        "properties": "",
        "reconsumeTimes": 0,
        "unitMode": "false",
        "batch": "false",
    }


SHORT_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "batch": "m",
}


def _short(topic: str, **changes: object) -> dict[str, Any]:
    return {SHORT_NAMES[name]: value for name, value in {**_send(topic), **changes}.items()}


QUEUE: dict[str, Any] = {"topic": "orders", "queueId": 0}
PULL: dict[str, Any] = {
    **QUEUE,
    "consumerGroup": "G",
    "queueOffset": 0,
    "maxMsgNums": 1,
    "sysFlag": 4,
    "commitOffset": 0,
    "suspendTimeoutMillis": 0,
    "subscription": "*",
    "subVersion": 0,
}
TOPIC_CONFIG: dict[str, Any] = {
    "topic": "orders",
    "defaultTopic": "TBW102",
    "readQueueNums": 1,
    "writeQueueNums": 1,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": "false",
}
KEY: dict[str, Any] = {"namespace": "n", "key": "k"}
BROKER: dict[str, Any] = {
    "brokerName": "other",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "c1",
    "brokerId": 0,
}
END: dict[str, Any] = {
    "producerGroup": "P",
    "commitLogOffset": "#half#",
    "tranStateTableOffset": "#half_queue_offset#",
    "commitOrRollback": 0,
    "fromTransactionCheck": "false",
    "msgId": "x",
}


POP: dict[str, Any] = {"consumerGroup": "G", **QUEUE}
DELIVERY: dict[str, Any] = {
    "consumerGroup": "G",
    **QUEUE,
    "offset": 0,
    "extraInfo": "0 1 60000 0 0 b 0 0",
}
ACK: dict[str, Any] = {"c": "G", "t": "orders", "r": "0", "so": 0, "q": 0, "pt": 1, "b": "AQ=="}
ASSIGNMENT: dict[str, Any] = {
    "topic": "orders",
    "consumerGroup": "G",
    "clientId": "c",
    "messageModel": "CLUSTERING",
    "strategyName": "AVG",
}


def _beat(group: str, *topics: str) -> dict[str, Any]:
    return {
        "clientID": "c",
        "producerDataSet": [{"groupName": "P"}],
        "consumerDataSet": [
            {
                "groupName": group,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": [{"topic": topic, "subString": "*"} for topic in topics],
            }
        ],
    }


LOCK = {"consumerGroup": "G", "clientId": "c", "mqSet": [{"topic": "orders", "queueId": 0}]}
UPDATE = f"{CLUSTER} Update"
GET = f"{CLUSTER} Get"
LOOK, CONSUME = f"{ORDERS} Get", f"{ORDERS} Sub"

ROWS = [
    # Producers
    row(Code.SEND_MESSAGE, f"{ORDERS} Pub", body=b"x", **_send("orders")),
    row(Code.SEND_MESSAGE_V2, f"{ORDERS} Pub", body=b"x", **_short("orders")),
    row(Code.SEND_BATCH_MESSAGE, f"{ORDERS} Pub", body=b"x", **_short("orders", batch="true")),
    row(Code.SEND_MESSAGE_V2, f"{GROUP} Sub Pub", way="retry", body=b"x", **_short("%RETRY%G")),
    row(
        Code.SEND_MESSAGE_V2,
        f"{ORDERS} Pub",
        "Topic:%LMQ%a Pub",
        "Topic:%LMQ%b Pub",
        way="light queues",
        body=b"x",
        **_short("orders", properties="INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02"),
    ),
    row(
        Code.SEND_BATCH_MESSAGE,
        f"{ORDERS} Pub",
        "Topic:%LMQ%a Pub",
        way="a light queue of a message in it",
        body=encode_batch([BatchItem(0, b"x", b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02")]),
        **_short("orders", batch="true"),
    ),
    row(Code.SEND_REPLY_MESSAGE, f"{ORDERS} Pub", body=b"x", **_send("orders")),
    row(Code.SEND_REPLY_MESSAGE_V2, f"{ORDERS} Pub", body=b"x", **_short("orders")),
    row(Code.RECALL_MESSAGE, f"{ORDERS} Pub", topic="orders", recallHandle="x"),
    row(Code.END_TRANSACTION, f"{ORDERS} Pub", topic="orders", **END),
    row(
        Code.END_TRANSACTION,
        f"{ORDERS} Pub",
        f"{SECRET} Pub",
        way="a transaction of another topic",
        topic="orders",
        **(
            END
            | {
                "commitLogOffset": "#secret_half#",
                "tranStateTableOffset": "#secret_half_queue_offset#",
            }
        ),
    ),
    # Consumers
    row(
        Code.CONSUMER_SEND_MSG_BACK,
        f"{GROUP} Sub",
        CONSUME,
        group="G",
        offset="#orders#",
        delayLevel=1,
        originTopic="orders",
    ),
    row(
        Code.CONSUMER_SEND_MSG_BACK,
        f"{GROUP} Sub",
        CONSUME,
        f"{SECRET} Sub",
        way="a byte of another topic",
        group="G",
        offset="#secret#",
        delayLevel=1,
        originTopic="orders",
    ),
    row(
        Code.CONSUMER_SEND_MSG_BACK,
        f"{GROUP} Sub",
        f"{SECRET} Sub",
        way="an id of another topic",
        group="G",
        offset=0,
        delayLevel=1,
        originMsgId="secret-key",
        originTopic="secret",
    ),
    row(
        Code.CONSUMER_SEND_MSG_BACK,
        f"{GROUP} Sub",
        "Topic:RMQ_SYS_TRANS_HALF_TOPIC Sub",
        way="a half message",
        group="G",
        offset="#half#",
        delayLevel=1,
    ),
    row(Code.PULL_MESSAGE, CONSUME, f"{GROUP} Sub", **PULL),
    row(Code.LITE_PULL_MESSAGE, CONSUME, f"{GROUP} Sub", **PULL),
    row(
        Code.PULL_MESSAGE,
        f"{FOREIGN} Sub",
        f"{GROUP} Sub",
        way="retries of another group",
        **(PULL | {"topic": "%RETRY%H"}),
    ),
    row(
        Code.PULL_MESSAGE,
        f"{FOREIGN} Sub",
        f"{GROUP} Sub",
        way="dead letters of another group",
        **(PULL | {"topic": "%DLQ%H"}),
    ),
    row(
        Code.QUERY_CONSUMER_OFFSET,
        f"{ORDERS} Sub Get",
        f"{GROUP} Sub Get",
        consumerGroup="G",
        **QUEUE,
    ),
    row(
        Code.UPDATE_CONSUMER_OFFSET,
        f"{ORDERS} Sub Update",
        f"{GROUP} Sub Update",
        consumerGroup="G",
        commitOffset=0,
        **QUEUE,
    ),
    row(Code.GET_CONSUMER_LIST_BY_GROUP, f"{GROUP} Sub Get", consumerGroup="G"),
    row(Code.HEART_BEAT, f"{GROUP} Sub", CONSUME, body=_beat("G", "orders", "%RETRY%G")),
    row(
        Code.HEART_BEAT,
        f"{GROUP} Sub",
        f"{FOREIGN} Sub",
        way="retries of another group",
        body=_beat("G", "%RETRY%H"),
    ),
    row(
        Code.HEART_BEAT,
        f"{GROUP} Sub",
        CONSUME,
        way="a retry topic of Java's pops",
        body=_beat("G", "orders", "%RETRY%G", "%RETRY%G_orders"),
    ),
    row(
        Code.HEART_BEAT,
        way="producers need no right to a group",
        body={"clientID": "c", "producerDataSet": [{"groupName": "P"}]},
    ),
    row(Code.UNREGISTER_CLIENT, f"{GROUP} Pub Sub", clientID="d", consumerGroup="G"),
    row(Code.UNREGISTER_CLIENT, way="a producer", clientID="d", producerGroup="P"),
    row(Code.LOCK_BATCH_MQ, f"{GROUP} Sub", CONSUME, body=LOCK),
    row(Code.UNLOCK_BATCH_MQ, f"{GROUP} Sub", CONSUME, body=LOCK),
    row(Code.CHECK_CLIENT_CONFIG, f"{GROUP} Sub", body={"clientId": "c", "group": "G"}),
    row(
        Code.CONSUME_MESSAGE_DIRECTLY,
        f"{GROUP} Sub",
        CONSUME,
        consumerGroup="G",
        clientId="c",
        msgId="#orders_id#",
        topic="orders",
    ),
    row(
        Code.CONSUME_MESSAGE_DIRECTLY,
        f"{GROUP} Sub",
        f"{SECRET} Sub",
        way="a message of another topic",
        consumerGroup="G",
        clientId="c",
        msgId="#secret_id#",
    ),
    row(Code.POP_MESSAGE, CONSUME, f"{GROUP} Sub", maxMsgNums=1, invisibleTime=1000, **POP),
    row(
        Code.POP_MESSAGE,
        f"{FOREIGN} Sub",
        f"{GROUP} Sub",
        way="retries of another group",
        **(POP | {"topic": "%RETRY%H"}),
    ),
    row(Code.PEEK_MESSAGE, CONSUME, f"{GROUP} Sub", maxMsgNums=1, **POP),
    row(Code.NOTIFICATION, CONSUME, f"{GROUP} Sub", pollTime=0, bornTime=0, **POP),
    row(Code.POP_LITE_MESSAGE, CONSUME, f"{GROUP} Sub", clientId="c", **POP),
    row(
        Code.LITE_SUBSCRIPTION_CTL,
        CONSUME,
        f"{GROUP} Sub",
        body={
            "subscriptionSet": [
                {"action": "COMPLETE_REMOVE", "clientId": "c", "group": "G", "topic": "orders"}
            ]
        },
    ),
    row(Code.GET_BROKER_LITE_INFO, f"{CLUSTER} Get"),
    row(Code.GET_PARENT_TOPIC_INFO, LOOK, topic="orders"),
    row(Code.GET_LITE_TOPIC_INFO, LOOK, parentTopic="orders", liteTopic="a"),
    row(Code.GET_LITE_CLIENT_INFO, LOOK, f"{GROUP} Get", parentTopic="orders", group="G"),
    row(Code.GET_LITE_GROUP_INFO, f"{GROUP} Get", group="G"),
    row(Code.TRIGGER_LITE_DISPATCH, f"{GROUP} Update", group="G"),
    row(Code.POLLING_INFO, LOOK, f"{GROUP} Get", **POP),
    row(Code.ACK_MESSAGE, CONSUME, f"{GROUP} Sub", **DELIVERY),
    row(
        Code.ACK_MESSAGE,
        CONSUME,
        f"{GROUP} Sub",
        way="a copy in a retry topic of Java",
        **(DELIVERY | {"topic": "%RETRY%G_orders"}),
    ),
    row(
        Code.ACK_MESSAGE,
        f"{FOREIGN} Sub",
        f"{GROUP} Sub",
        way="retries of another group",
        **(DELIVERY | {"topic": "%RETRY%H"}),
    ),
    row(Code.CHANGE_MESSAGE_INVISIBLETIME, CONSUME, f"{GROUP} Sub", invisibleTime=1, **DELIVERY),
    row(
        Code.CHANGE_MESSAGE_INVISIBLETIME,
        CONSUME,
        f"{GROUP} Sub",
        way="a copy in the newer retry topic of Java",
        invisibleTime=1,
        **(DELIVERY | {"topic": "%RETRY%G+orders"}),
    ),
    row(Code.BATCH_ACK_MESSAGE, CONSUME, f"{GROUP} Sub", body={"acks": [ACK]}),
    row(
        Code.BATCH_ACK_MESSAGE,
        CONSUME,
        f"{SECRET} Sub",
        f"{GROUP} Sub",
        way="messages of two topics, one by long names",
        body={
            "acks": [ACK, {"consumerGroup": "G", "topic": "secret", "popTime": 1, "bitSet": "AQ=="}]
        },
    ),
    row(
        Code.BATCH_ACK_MESSAGE,
        CONSUME,
        f"{GROUP} Sub",
        f"{FOREIGN} Sub",
        way="messages of two groups",
        body={"acks": [ACK, ACK | {"c": "H"}]},
    ),
    row(Code.QUERY_ASSIGNMENT, CONSUME, f"{GROUP} Sub", body=ASSIGNMENT),
    row(
        Code.QUERY_ASSIGNMENT,
        f"{GROUP} Sub",
        way="the retry topic of the group",
        body=ASSIGNMENT | {"topic": "%RETRY%G"},
    ),
    # Looks
    row(Code.GET_ROUTEINFO_BY_TOPIC, f"{ORDERS} Pub Sub Get", topic="orders"),
    row(
        Code.QUERY_MESSAGE,
        f"{ORDERS} Sub Get",
        key="k",
        maxNum=1,
        beginTimestamp=0,
        endTimestamp=1 << 60,
        topic="orders",
    ),
    row(Code.SEARCH_OFFSET_BY_TIMESTAMP, LOOK, timestamp=0, **QUEUE),
    row(Code.GET_MAX_OFFSET, LOOK, **QUEUE),
    row(Code.GET_MIN_OFFSET, LOOK, **QUEUE),
    row(
        Code.GET_MAX_OFFSET,
        f"{GROUP} Sub Get",
        way="dead letters",
        **(QUEUE | {"topic": "%DLQ%G"}),
    ),
    row(Code.GET_EARLIEST_MSG_STORETIME, LOOK, **QUEUE),
    row(Code.VIEW_MESSAGE_BY_ID, LOOK, topic="orders", offset="#orders#"),
    row(
        Code.VIEW_MESSAGE_BY_ID,
        LOOK,
        f"{SECRET} Get",
        way="another topic",
        topic="orders",
        offset="#secret#",
    ),
    row(
        Code.VIEW_MESSAGE_BY_ID,
        LOOK,
        "Topic:RMQ_SYS_TRANS_HALF_TOPIC Get",
        way="a half message",
        topic="orders",
        offset="#half#",
    ),
    row(Code.VIEW_MESSAGE_BY_ID, GET, LOOK, way="no topic", offset="#orders#"),
    row(Code.QUERY_CONSUME_QUEUE, LOOK, index=0, count=1, **QUEUE),
    row(
        Code.QUERY_CONSUME_QUEUE,
        LOOK,
        f"{GROUP} Get",
        way="with a group",
        index=0,
        count=1,
        consumerGroup="G",
        **QUEUE,
    ),
    # Topics and groups
    row(Code.UPDATE_AND_CREATE_TOPIC, f"{ORDERS} Create", **TOPIC_CONFIG),
    row(
        Code.UPDATE_AND_CREATE_TOPIC,
        f"{GROUP} Create",
        way="retries",
        **(TOPIC_CONFIG | {"topic": "%RETRY%G"}),
    ),
    row(Code.UPDATE_AND_CREATE_TOPIC_LIST, UPDATE, body={"topicConfigList": []}),
    row(Code.DELETE_TOPIC_IN_BROKER, "Topic:gone Delete", topic="gone"),
    row(Code.DELETE_TOPIC_IN_BROKER, f"{GROUP} Delete", way="dead letters", topic="%DLQ%G"),
    row(Code.DELETE_TOPIC_IN_BROKER, f"{GROUP} Delete", way="retries", topic="%RETRY%G"),
    row(Code.GET_TOPIC_STATS_INFO, LOOK, topic="orders"),
    row(Code.GET_TOPIC_CONFIG, LOOK, topic="orders"),
    row(Code.QUERY_TOPIC_CONSUME_BY_WHO, LOOK, topic="orders"),
    row(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, UPDATE, body={"groupName": "new"}),
    row(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, UPDATE, body={"groupConfigList": []}),
    row(Code.DELETE_SUBSCRIPTIONGROUP, "Group:gone Delete", groupName="gone"),
    row(Code.GET_SUBSCRIPTIONGROUP_CONFIG, f"{GROUP} Get", group="G"),
    row(Code.GET_CONSUMER_CONNECTION_LIST, f"{GROUP} Get", consumerGroup="G"),
    row(Code.GET_CONSUMER_RUNNING_INFO, f"{GROUP} Get", consumerGroup="G", clientId="c"),
    row(Code.QUERY_TOPICS_BY_CONSUMER, f"{GROUP} Get", group="G"),
    row(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, LOOK, f"{GROUP} Get", group="G", topic="orders"),
    row(Code.QUERY_CONSUME_TIME_SPAN, LOOK, f"{GROUP} Get", group="G", topic="orders"),
    row(Code.GET_CONSUME_STATS, LOOK, f"{GROUP} Get", consumerGroup="G", topic="orders"),
    row(
        Code.GET_CONSUME_STATS,
        LOOK,
        f"{SECRET} Get",
        f"{GROUP} Get",
        way="a list of topics",
        consumerGroup="G",
        topic="orders",
        topicList="orders;secret",
    ),
    row(
        Code.GET_CONSUME_STATS,
        f"{ORDERS} Sub Get",
        f"{FOREIGN} Get",
        way="all topics of the group",
        consumerGroup="H",
    ),
    row(
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        f"{ORDERS} Update",
        f"{GROUP} Update",
        group="G",
        topic="orders",
        timestamp=0,
    ),
    row(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, LOOK, f"{GROUP} Get", group="G", topic="orders"),
    row(
        Code.CLONE_GROUP_OFFSET,
        f"{FOREIGN} Get Sub",
        f"{GROUP} Update",
        f"{ORDERS} Update",
        srcGroup="H",
        destGroup="G",
        topic="orders",
        offline="true",
    ),
    row(
        Code.CLONE_GROUP_OFFSET,
        f"{FOREIGN} Get Sub",
        f"{GROUP} Update",
        f"{ORDERS} Update",
        way="all topics of the source",
        srcGroup="H",
        destGroup="G",
        offline="true",
    ),
    row(Code.QUERY_CORRECTION_OFFSET, LOOK, f"{GROUP} Get", topic="orders", compareGroup="G"),
    row(
        Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
        f"{ORDERS} Update",
        f"{GROUP} Update",
        topic="orders",
        group="G",
    ),
    row(
        Code.SET_MESSAGE_REQUEST_MODE,
        f"{ORDERS} Update",
        f"{GROUP} Update",
        body={"topic": "orders", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0},
    ),
    # The cluster
    row(Code.GET_ALL_MESSAGE_REQUEST_MODE, GET),
    row(Code.POP_ROLLBACK, UPDATE),
    row(Code.RESUME_CHECK_HALF_MESSAGE, UPDATE, msgId="#orders_id#"),
    row(Code.GET_ALL_TOPIC_CONFIG, GET),
    row(Code.UPDATE_BROKER_CONFIG, UPDATE),
    row(Code.GET_BROKER_CONFIG, GET),
    row(Code.GET_BROKER_RUNTIME_INFO, GET),
    row(Code.GET_ALL_CONSUMER_OFFSET, GET),
    row(Code.GET_ALL_DELAY_OFFSET, GET),
    row(Code.PUT_KV_CONFIG, UPDATE, value="v", **KEY),
    row(Code.GET_KV_CONFIG, GET, **KEY),
    row(Code.DELETE_KV_CONFIG, UPDATE, **KEY),
    row(Code.GET_KVLIST_BY_NAMESPACE, GET, namespace="n"),
    row(Code.REGISTER_BROKER, UPDATE, body={}, **BROKER),
    row(Code.UNREGISTER_BROKER, UPDATE, **BROKER),
    row(Code.QUERY_DATA_VERSION, GET, body={}, **BROKER),
    row(Code.BROKER_HEARTBEAT, UPDATE, **BROKER),
    row(Code.GET_BROKER_MEMBER_GROUP, GET, brokerName="b", clusterName="c1"),
    row(Code.GET_BROKER_CLUSTER_INFO, GET),
    row(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GET),
    row(Code.GET_PRODUCER_CONNECTION_LIST, GET, producerGroup="P"),
    row(Code.GET_ALL_PRODUCER_INFO, GET),
    row(Code.WIPE_WRITE_PERM_OF_BROKER, UPDATE, brokerName="other"),
    row(Code.ADD_WRITE_PERM_OF_BROKER, UPDATE, brokerName="other"),
    row(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, GET),
    row(Code.DELETE_TOPIC_IN_NAMESRV, UPDATE, topic="orders"),
    row(Code.REGISTER_TOPIC_IN_NAMESRV, UPDATE, topic="orders", body={"queueDatas": []}),
    row(Code.GET_TOPICS_BY_CLUSTER, GET, cluster="c1"),
    row(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, GET),
    row(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, GET),
    row(Code.GET_UNIT_TOPIC_LIST, GET),
    row(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, GET),
    row(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, GET),
    row(Code.CLEAN_EXPIRED_CONSUMEQUEUE, UPDATE),
    row(Code.DELETE_EXPIRED_COMMITLOG, UPDATE),
    row(Code.CLEAN_UNUSED_TOPIC, UPDATE),
    row(Code.VIEW_BROKER_STATS_DATA, GET, statsName="x", statsKey="y"),
    row(Code.GET_BROKER_CONSUME_STATS, GET, isOrder="false"),
    row(Code.UPDATE_NAMESRV_CONFIG, UPDATE),
    row(Code.GET_NAMESRV_CONFIG, GET),
    row(Code.AUTH_CREATE_USER, UPDATE, username="n", body={"password": "p"}),
    row(Code.AUTH_UPDATE_USER, UPDATE, username="n", body={"password": "p"}),
    row(Code.AUTH_DELETE_USER, UPDATE, username="n"),
    row(Code.AUTH_GET_USER, GET, username="n"),
    row(Code.AUTH_LIST_USERS, GET),
    row(Code.AUTH_CREATE_ACL, UPDATE, subject="User:n", body={}),
    row(Code.AUTH_UPDATE_ACL, UPDATE, subject="User:n", body={}),
    row(Code.AUTH_DELETE_ACL, UPDATE, subject="User:n"),
    row(Code.AUTH_GET_ACL, GET, subject="User:n"),
    row(Code.AUTH_LIST_ACLS, GET),
]
