"""Tests of SendMessage: which messages are stored, and which are refused."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.grpc_broker import GrpcBroker, GrpcClient, codes, serving_grpc
from tests.kit.grpc_types import find_message, list_values
from tieredstore.broker.grpc.messages import MAX_GZIP_MEMBERS, RESERVED_NAMES
from tieredstore.broker.grpc.protocol import write_timestamp_ms
from tieredstore.broker.send.door import BROKER_PROPERTIES
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.message.record import StoredMessage

ENCODINGS = list_values("Encoding")
DIGESTS = list_values("DigestType")


def with_client(
    root: Path, test: Callable[[GrpcBroker, GrpcClient], Awaitable[None]], **properties: str
) -> None:
    async def run() -> None:
        async with serving_grpc(root, properties) as broker, broker.client() as client:
            await test(broker, client)

    asyncio.run(run())


def one_message(body: bytes = b"body", topic: str = "T", message_id: str = "01" * 17) -> Any:
    request = find_message("SendMessageRequest")()
    add_message(request, body, topic, message_id)
    return request


def add_message(request: Any, body: bytes, topic: str = "T", message_id: str = "01" * 17) -> Any:
    message = request.messages.add(body=body)
    message.topic.name = topic
    message.system_properties.message_id = message_id
    write_timestamp_ms(message.system_properties.born_timestamp, 1_700_000_000_123)
    return message


def read_all(broker: GrpcBroker, topic: str = "T") -> list[StoredMessage]:
    store = broker.services.store
    found = []
    for queue_id in range(8):
        found += store.get_message("G", topic, queue_id, 0, 100).messages
    return found


async def read(broker: GrpcBroker, count: int, topic: str = "T") -> list[StoredMessage]:
    for _ in range(2000):
        found = read_all(broker, topic)
        if len(found) >= count:
            return found
        await asyncio.sleep(0.005)
    raise AssertionError(f"expected {count} messages")


def test_a_message_is_stored_under_the_names_of_the_other_protocol(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        request = one_message()
        message = request.messages[0]
        message.user_properties["colour"] = "blue"
        system = message.system_properties
        system.tag = "a"
        system.keys.extend(["k1", "k2"])
        system.message_group = "order-7"
        system.born_host = "producer.example"
        system.trace_context = "trace"
        system.body_digest.type = DIGESTS["MD5"]
        system.body_digest.checksum = hashlib.md5(b"body").hexdigest().upper()
        response = await client.call("SendMessage", request)
        assert codes([response.status, response.entries[0].status]) == ["OK", "OK"]
        assert response.entries[0].message_id == "01" * 17
        (stored,) = await read(broker, 1)
        properties = stored.properties
        expected = {
            "colour": "blue",
            "TAGS": "a",
            "KEYS": "k1 k2",
            "UNIQ_KEY": "01" * 17,
            "__SHARDINGKEY": "order-7",
            "__BORNHOST": "producer.example",
            "BORN_TIMESTAMP": "1700000000123",
            "TRACE_CONTEXT": "trace",
        }
        assert {name: properties[name] for name in expected} == expected
        assert bytes(stored.body) == b"body"
        assert stored.born_timestamp_ms == 1_700_000_000_123
        assert stored.born_host.startswith("127.0.0.1:")
        assert stored.queue_offset == response.entries[0].offset

    with_client(tmp_path, test)


def test_the_broker_chooses_the_queues_and_one_for_each_message_group(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        await client.call("QueryRoute", client.make("QueryRouteRequest", topic="T", endpoints=True))
        request = find_message("SendMessageRequest")()
        for number in range(16):
            add_message(request, b"plain", message_id=f"{number:034x}")
        for number in range(16, 32):
            message = add_message(request, b"grouped", message_id=f"{number:034x}")
            message.system_properties.message_group = "g"
        response = await client.call("SendMessage", request)
        assert set(codes([entry.status for entry in response.entries])) == {"OK"}
        stored = await read(broker, 32)
        plain = {one.queue_id for one in stored if bytes(one.body) == b"plain"}
        assert plain == set(range(8))
        grouped = [one for one in stored if bytes(one.body) == b"grouped"]
        assert len({one.queue_id for one in grouped}) == 1
        assert [int(one.msg_id, 16) for one in grouped] == list(range(16, 32))

    with_client(tmp_path, test)


def test_a_gzip_body_is_one_that_every_client_can_read(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        plain = b"body " * 1000
        members = gzip.compress(plain[:3000]) + gzip.compress(b"") + gzip.compress(plain[3000:])
        bodies = gzip.compress(plain), zlib.compress(plain), members, members + bytes(512)
        for number, packed in enumerate(bodies):
            request = one_message(packed, message_id=f"{number:034x}")
            request.messages[0].system_properties.body_encoding = ENCODINGS["GZIP"]
            response = await client.call("SendMessage", request)
            assert codes([response.status]) == ["OK"]
        for stored in await read(broker, len(bodies)):
            assert stored.body_length < 1000
            assert stored.decode_body() == plain

    with_client(tmp_path, test)


def change(**system: Any) -> Callable[[Any], None]:
    def apply(message: Any) -> None:
        for name, value in system.items():
            setattr(message.system_properties, name, value)

    return apply


def set_property(name: str, value: str) -> Callable[[Any], None]:
    return lambda message: message.user_properties.update({name: value})


def fill_properties(message: Any) -> None:
    message.user_properties.update({f"p{number}": "v" for number in range(129)})


def set_digest(message: Any) -> None:
    message.system_properties.body_digest.type = DIGESTS["MD5"]
    message.system_properties.body_digest.checksum = "0" * 32


def set_gzip(body: bytes) -> Callable[[Any], None]:
    def apply(message: Any) -> None:
        message.body = body
        message.system_properties.body_encoding = ENCODINGS["GZIP"]

    return apply


JAVA_TEXTS = {
    "message body cannot be empty",
    "message body cannot exceed the max 4194304",
    "message id cannot be empty",
    "tag cannot contain '|'",
    "tag cannot be the char sequence of whitespace",
    "message group exceed the max size 64",
    "key cannot be the char sequence of whitespace",
    "property is used by system: UNIQ_KEY",
    "property is used by system: _SYS_MSG_PRIORITY_",
    "the key of property cannot contain control character",
    "the value of property cannot contain control character",
    "the total size of user property is too large, max is 16384",
    "too many user properties, max is 128",
    "the max delay time of message is too large, max is 86400000",
    "priority: expected a number from 0, found -1",  # Java's proxy answers INTERNAL_SERVER_ERROR
    "the max transaction recovery time of message is too large, max is 3600",
}
"""Error texts of Java's proxy. Client programs search for them."""


def set_long_recovery(message: Any) -> None:
    system = message.system_properties
    system.message_type = list_values("MessageType")["TRANSACTION"]
    system.orphaned_transaction_recovery_duration.seconds = 3_601


def set_far_delivery(message: Any) -> None:
    write_timestamp_ms(
        message.system_properties.delivery_timestamp, SYSTEM_CLOCK.now_ms() + 25 * 3_600_000
    )


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda message: setattr(message, "body", b""), "MESSAGE_BODY_EMPTY"),
        (
            lambda message: setattr(message, "body", b"x" * ((4 << 20) + 1)),
            "MESSAGE_BODY_TOO_LARGE",
        ),
        (change(message_id=""), "ILLEGAL_MESSAGE_ID"),
        (change(tag="a|b"), "ILLEGAL_MESSAGE_TAG"),
        (change(tag=" "), "ILLEGAL_MESSAGE_TAG"),
        (change(message_group="g" * 64), "ILLEGAL_MESSAGE_GROUP"),
        (lambda message: message.system_properties.keys.append(" "), "ILLEGAL_MESSAGE_KEY"),
        (lambda message: message.system_properties.keys.append("\t"), "ILLEGAL_MESSAGE_KEY"),
        (
            lambda message: message.system_properties.keys.append("k" * ((16 << 10) + 1)),
            "MESSAGE_PROPERTIES_TOO_LARGE",
        ),
        (change(tag="t" * ((16 << 10) + 1)), "MESSAGE_PROPERTIES_TOO_LARGE"),
        (set_long_recovery, "BAD_REQUEST"),
        (set_property("UNIQ_KEY", "x"), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        (set_property("_SYS_MSG_PRIORITY_", "1"), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        (set_property("a\x01b", "x"), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        (set_property("a", "x\x02y"), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        (set_property("a", "x" * (16 << 10)), "MESSAGE_PROPERTIES_TOO_LARGE"),
        (fill_properties, "MESSAGE_PROPERTIES_TOO_LARGE"),
        (set_digest, "MESSAGE_CORRUPTED"),
        (set_far_delivery, "ILLEGAL_DELIVERY_TIME"),
        (change(priority=-1), "BAD_REQUEST"),
        (change(body_encoding=ENCODINGS["GZIP"]), "MESSAGE_CORRUPTED"),
        (set_gzip(gzip.compress(b"x")[:-1]), "MESSAGE_CORRUPTED"),
        (set_gzip(gzip.compress(b"x") + gzip.compress(b"y")[:-1]), "MESSAGE_CORRUPTED"),
        (set_gzip(gzip.compress(b"") * (MAX_GZIP_MEMBERS + 1)), "MESSAGE_CORRUPTED"),
    ],
)
def test_i05_what_no_message_may_be_is_refused(
    tmp_path: Path, spoil: Callable[[Any], None], code: str
) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        request = one_message(b"\x1f\x8bno gzip")
        spoil(request.messages[0])
        response = await client.call("SendMessage", request)
        assert codes([response.status]) == [code]
        if code != "MESSAGE_CORRUPTED":
            assert response.status.message in JAVA_TEXTS
        assert not response.entries
        assert read_all(broker) == []

    with_client(tmp_path, test)


def test_texts_that_are_empty_count_as_absent_and_keys_may_have_spaces(tmp_path: Path) -> None:
    """As in Java's proxy, empty strings are treated as missing, and keys may contain spaces."""

    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        request = one_message()
        system = request.messages[0].system_properties
        system.tag, system.message_group = "", ""
        system.keys.extend(["a b", "", "c"])
        response = await client.call("SendMessage", request)
        assert codes([response.status]) == ["OK"]
        [stored] = await read(broker, 1)
        assert stored.get_property("KEYS") == "a b c"
        assert not {"TAGS", "__SHARDINGKEY"} & set(stored.properties)

    with_client(tmp_path, test)


@pytest.mark.parametrize(
    ("lite_topic", "code", "kept"),
    [
        ("a-B_1", "OK", "a-B_1"),
        ("", "OK", None),
        ("x" * 64, "OK", "x" * 64),
        *((name, "ILLEGAL_LITE_TOPIC", None) for name in ("x" * 65, " ", "a.b", "a$b", "ä", "a\n")),
    ],
)
def test_i75_a_message_keeps_its_lite_topic_or_is_refused(
    tmp_path: Path, lite_topic: str, code: str, kept: str | None
) -> None:
    """A message is stored with its lite topic, or refused."""

    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        request = one_message()
        request.messages[0].system_properties.lite_topic = lite_topic
        response = await client.call("SendMessage", request)
        assert codes([response.status]) == [code]
        if code == "OK":
            [stored] = await read(broker, 1)
            assert stored.get_property("__LITE_TOPIC") == kept
        else:
            assert read_all(broker) == []

    with_client(tmp_path, test)


def test_a_lite_message_without_light_queues_is_refused(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        config = TopicConfig(topic_name="T", attributes={"message.type": "LITE"})
        broker.services.topics.update_topic(config)
        request = one_message()
        request.messages[0].system_properties.lite_topic = "a"
        response = await client.call("SendMessage", request)
        assert "enableLmq" in response.entries[0].status.message
        assert read_all(broker) == []

    with_client(tmp_path, test)


def test_i04_a_gzip_bomb_stops_at_the_largest_body(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        half = gzip.compress(bytes(2 << 20))
        for body in (gzip.compress(bytes((4 << 20) + 1)), half + half + gzip.compress(b"x")):
            request = one_message(body)
            request.messages[0].system_properties.body_encoding = ENCODINGS["GZIP"]
            response = await client.call("SendMessage", request)
            assert codes([response.status]) == ["MESSAGE_BODY_TOO_LARGE"]

    with_client(tmp_path, test)


def as_normal(system: Any) -> None:
    """Leave the request unchanged, so that it sends a normal message."""


def as_fifo(system: Any) -> None:
    system.message_group = "g"


def as_delayed(system: Any) -> None:
    write_timestamp_ms(system.delivery_timestamp, int(time.time() * 1000) + 60_000)


def as_priority(system: Any) -> None:
    system.priority = 1


def as_transaction(system: Any) -> None:
    system.message_type = list_values("MessageType")["TRANSACTION"]


SHAPES = {
    "NORMAL": as_normal,
    "FIFO": as_fifo,
    "DELAY": as_delayed,
    "TRANSACTION": as_transaction,
    "PRIORITY": as_priority,
}


@pytest.mark.parametrize("given", SHAPES)
@pytest.mark.parametrize("topic", ["", *SHAPES, "MIXED", "LITE", "%RETRY%G", "%DLQ%G"])
def test_a_message_must_have_the_type_of_its_topic(tmp_path: Path, topic: str, given: str) -> None:
    """As in Java's proxy, a message must have the type of its topic. A topic without a type accepts
    normal messages."""

    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        name = topic if topic.startswith("%") else "T"
        attributes = {} if not topic or topic.startswith("%") else {"message.type": topic}
        broker.services.topics.update_topic(TopicConfig(topic_name=name, attributes=attributes))
        request = one_message(topic=name)
        SHAPES[given](request.messages[0].system_properties)
        response = await client.call("SendMessage", request)
        expected = topic or "NORMAL"
        if expected in {given, "MIXED"} or expected.startswith("%"):
            assert "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE" not in codes([response.status])
        else:
            assert codes([response.status]) == ["MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"]
            assert response.status.message == (
                "TopicMessageType validate failed, "
                f"the expected type is {expected}, but actual type is {given}"
            )

    with_client(tmp_path, test, enableTopicMessageTypeCheck="true")


def test_messages_of_two_topics_in_one_call_are_refused(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        request = one_message()
        add_message(request, b"other", topic="U")
        response = await client.call("SendMessage", request)
        assert codes([response.status]) == ["MESSAGE_CORRUPTED"]

    with_client(tmp_path, test)


def test_the_largest_body_is_taken(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        response = await client.call("SendMessage", one_message(b"x" * (4 << 20)))
        assert codes([response.status]) == ["OK"]
        (stored,) = await read(broker, 1)
        assert stored.body_length == 4 << 20

    with_client(tmp_path, test)


def test_an_unknown_topic_is_not_found(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        response = await client.call("SendMessage", one_message())
        assert codes([response.status, response.entries[0].status]) == ["TOPIC_NOT_FOUND"] * 2

    with_client(tmp_path, test, autoCreateTopicEnable="false")


def test_i75_names_of_the_broker_are_no_user_properties() -> None:
    """Clients can neither set nor see the properties that the broker adds to messages."""
    names = {name.decode() for name in BROKER_PROPERTIES}
    names -= {"TIMER_DELAY_LEVEL", "POP_CK_OFFSET"}  # which Java's proxy takes as well
    clients = {"WAIT", "RECONSUME_TIME", "TIMER_DELAY_MS", "MAX_RECONSUME_TIMES", "DUP_INFO"}
    assert names | clients | {"MIN_OFFSET", "MAX_OFFSET"} <= RESERVED_NAMES
