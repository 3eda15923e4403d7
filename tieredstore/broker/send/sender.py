"""MessageSender: checks, completes and puts producers' messages."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from tieredstore.broker.clients.consumers import RebalanceLocks
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.send import fitting
from tieredstore.broker.send.door import Door, check_delay, remove_broker_properties
from tieredstore.broker.send.lite import LightQuota, check_lite_member, name_lite_queue
from tieredstore.broker.send.message_type import apply_priority
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager, check_topic_name
from tieredstore.broker.state.traffic import TrafficCounts
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import (
    DURABLE,
    MessageStore,
    PutMessageResult,
    wait_until_durable,
)
from tieredstore.errors import Invalid
from tieredstore.message import properties as props
from tieredstore.message import sysflag
from tieredstore.message.crc import CRC_BLOCK_SIZE
from tieredstore.message.encoding import DueMessage, Message
from tieredstore.message.hashes import java_string_hash
from tieredstore.message.names import DLQ_PREFIX, RETRY_PREFIX
from tieredstore.message.properties import find_text

_MULTIPLIER: Final = 2_862_933_555_777_941_757
_U64: Final = (1 << 64) - 1


class QueueChooser:
    """Chooses queues in turn. Messages of the same message group (`__SHARDINGKEY`) or lite topic
    always get the same queue."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, queue_nums: int, properties: bytes) -> int:
        """Return a queue id below `queue_nums` (at least 1)."""
        group = find_text(properties, b"__SHARDINGKEY") or find_text(properties, b"__LITE_TOPIC")
        if group is not None:
            return consistent_hash(java_string_hash(group), queue_nums)
        self._turn += 1
        return self._turn % queue_nums


def consistent_hash(key: int, buckets: int) -> int:
    """Return the bucket of a key, using jump consistent hash (Lamping and Veach). Few keys move
    when buckets are added. Java's proxy uses it to find the queue of a message group."""
    state = key & _U64
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _U64
        following = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if not 0 <= following < buckets:
            return candidate
        candidate = following


REGION: Final = "DefaultRegion"
"""Value of the property MSG_REGION in every message, as in Java."""
_OK: Final = PutMessageStatus.PUT_OK
_TOO_LONG: Final = PutMessageStatus.PROPERTIES_SIZE_EXCEEDED
_MAX_COMPLETED: Final = props.MAX_PROPERTIES_BYTES - CRC_BLOCK_SIZE
_UNIT_TOPIC: Final = 1
_UNIT_RETRY_TOPIC: Final = 2


class SendRequest(msgspec.Struct, gc=False):
    """Message of a producer. With a queue id of -1, the broker chooses the queue. `default_topic`,
    `default_queue_nums`: template and maximum number of queues if an unknown topic is created.
    `max_reconsume_times`: for messages in a `%RETRY%` topic, None means the group's setting.
    `is_reply`: True if the message answers a request and may go to the reply topic."""

    group: str
    message: Message
    default_topic: str = "TBW102"
    default_queue_nums: int = 4
    max_reconsume_times: int | None = None
    is_unit_mode: bool = False
    is_reply: bool = False


class SendResult(NamedTuple):
    """Result of a send. `message_id`: offset message id, or those of a batch joined by commas.
    `transaction_id`: UNIQ_KEY of the message. `recall_handle`: for a timer message, otherwise
    empty."""

    status: PutMessageStatus
    queue_id: int
    queue_offset: int
    message_id: str
    physical_offset: int
    transaction_id: str
    recall_handle: str = ""


class MessageSender:
    """Puts producers' messages after Java's checks. Use only on the event loop. `store_host`:
    address in the store's records. `locks`: queue locks of orderly consumers. A message that such a
    consumer sends to a retry topic becomes a dead letter. `is_read_only`: True to refuse all
    messages. `fills_light_queues`: True if the store is filling light queues."""

    def __init__(
        self,
        store: MessageStore,
        settings: BrokerSettings,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        store_host: bytes,
        *,
        locks: RebalanceLocks | None = None,
        is_read_only: bool = False,
        door: Door | None = None,
        fills_light_queues: Callable[[], bool] = lambda: False,
        light_quota: LightQuota | None = None,
        traffic: TrafficCounts | None = None,
    ) -> None:
        self.store = store
        self._traffic = traffic or TrafficCounts()
        self._locks = locks
        self._settings = settings
        self._topics = topics
        self.find_queue = topics.find_queue
        self._groups = groups
        self._store_host = store_host
        self._host_text = store_host.hex().upper()
        self._is_read_only = is_read_only
        self._queues = QueueChooser()
        self.door = door or Door(settings)
        self._fills_light_queues = fills_light_queues
        self._light_quota = light_quota
        self._suffix = props.encode_properties(
            {"CLUSTER": settings.broker_cluster_name, "MSG_REGION": REGION, "TRACE_ON": "true"}
        )

    async def send(self, request: SendRequest) -> SendResult:
        """Put a message and wait until it is as durable as the flush mode requires. Raises Refused
        if it is not stored."""
        sent = self.submit(request)
        return sent if isinstance(sent, SendResult) else await sent

    def submit(self, request: SendRequest) -> SendResult | Awaitable[SendResult]:
        """Put a message. Returns the result, or an awaitable of it if the put waits for a flush or
        for a new topic. Raises Refused."""
        message = self.accept(request)
        return self.put(message, message.topic)

    def put(self, message: Message, topic: str) -> SendResult | Awaitable[SendResult]:
        """Put an accepted message like `submit`. `topic`: topic from which the message can be
        read."""
        result = self.store.put_message(message)
        if result.status is _TOO_LONG and topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            result = self._put_in_room(message)
            topic = message.topic
        if (
            result.durable is DURABLE
            and self._topics.is_persisted(topic)
            and not _has_timer(message)
        ):
            return self._conclude(message, result)
        return self._wait(message, result, topic)

    def accept(self, request: SendRequest) -> Message:
        """Check a message and fill in its topic, queue and properties. Raises Refused."""
        topic = request.message.topic
        if self._is_read_only:
            raise Refused(Reason.NO_PERMISSION, "the broker is read-only")
        config = self._topics.find_topic(topic)
        is_open = self.door.is_open(topic, is_reply=request.is_reply)
        if config is None or not is_open or self._settings.broker_permission & 2 == 0:
            config = self._find_or_make_topic(request, config)
        message = request.message = self.door.admit(request.message)
        if b"LITE_TOPIC\x01" in message.properties or b"%LMQ%" in message.properties:
            name_lite_queue(message, config, fills_queues=self._fills_light_queues())
            if self._light_quota is not None:
                self._light_quota.check(message.properties)
        if config.write_queue_nums > 0:
            apply_priority(message, config.write_queue_nums)
        if message.queue_id < 0:
            if config.write_queue_nums <= 0:
                raise Refused(Reason.NO_PERMISSION, f"topic {topic} has no queue to write")
            message.queue_id = self._queues.choose(config.write_queue_nums, message.properties)
        elif message.queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            raise Refused(
                Reason.INVALID_PARAMETER,
                f"request queueId[{message.queue_id}] is illegal, topic {topic} has "
                f"{config.write_queue_nums} queues to write, producer group {request.group}",
            )
        if config.topic_filter_type == "MULTI_TAG":
            message.sys_flag |= sysflag.MULTI_TAGS
        message.properties = self._complete_properties(message.properties, self._suffix)
        if topic[0] == "%" and topic.startswith(RETRY_PREFIX):
            self._move_to_dead_letters(request)
        return message

    async def send_batch(self, request: SendRequest, messages: Sequence[Message]) -> SendResult:
        """Put messages into one queue with consecutive offsets, all or none. The message in
        `request` has the values that all of them share: topic, queue, system flags, times and host.
        Its properties are added to messages that lack them. Raises Refused."""
        shared = request.message
        if shared.topic.startswith(RETRY_PREFIX):
            raise Refused(
                Reason.MESSAGE_ILLEGAL, f"batch request does not support retry group {shared.topic}"
            )
        if not messages:
            raise Refused(Reason.MESSAGE_ILLEGAL, "a batch of no messages")
        shared = self.accept(request)
        common = props.remove_property(shared.properties, b"UNIQ_KEY")
        pairs = _split_pairs(common, "the batch")
        batch: list[Message] = []
        for number, message in enumerate(messages):
            member = msgspec.structs.replace(
                shared,
                body=message.body,
                flag=message.flag,
                properties=self._complete(number, message.properties, pairs, shared.topic),
            )
            if _has_timer(message):  # Java's broker does not check the times of a batch's messages
                member = DueMessage(*msgspec.structs.astuple(member))
            batch.append(member)
        result = self.store.put_messages(batch)
        sent = await self._wait(shared, result, shared.topic)
        self._traffic.batched[shared.topic] += len(batch) - 1
        return sent._replace(message_id=",".join(self._list_ids(batch, result)))

    def _complete(self, number: int, properties: bytes, pairs: list[bytes], topic: str) -> bytes:
        """Return the properties of a batch member. `pairs`: properties of the batch, which are
        added unless the message has them. Raises Refused."""
        _split_pairs(properties, f"message {number} of the batch")
        check_lite_member(properties, topic)
        if properties.find(b"DELAY\x01") >= 0:
            check_delay(properties)
        properties = remove_broker_properties(properties)
        marked = b"\x02" + properties
        lacking = [
            pair for pair in pairs if marked.find(b"\x02" + pair[: pair.index(b"\x01") + 1]) < 0
        ]
        completed = self._complete_properties(properties, b"".join(lacking))
        # Java's broker adds nothing to the messages of a batch: a size that it accepts must fit
        # here.
        return completed if len(completed) <= _MAX_COMPLETED else properties.rstrip(b"\0")

    def _complete_properties(self, properties: bytes, suffix: bytes) -> bytes:
        if properties and properties[-1] != 2:
            properties += b"\x02"
        if (b"\x02" + properties).find(b"\x02UNIQ_KEY\x01") < 0:
            properties += b"UNIQ_KEY\x01%s\x02" % make_unique_key(self._store_host).encode()
        return properties + suffix

    def _list_ids(self, batch: list[Message], result: PutMessageResult) -> Iterator[str]:
        sizes = [len(message.body) + len(message.properties) for message in batch]
        # Records of one topic and one producer differ in nothing else.
        fixed = (result.wrote_bytes - sum(sizes)) // len(batch)
        position = result.physical_offset
        for size in sizes:
            yield f"{self._host_text}{position:016X}"
            position += fixed + size

    async def recall(self, group: str, topic: str, handle: str) -> str:
        """Recall a timer message that is not due yet, and return its UNIQ_KEY. Does not check that
        the message exists. Raises Refused, for example if it is already due."""
        try:
            recalled = fitting.parse_recall_handle(handle)
        except Invalid as error:
            raise Refused(Reason.INVALID_PARAMETER, str(error)) from error
        if recalled.topic != topic:
            raise Refused(
                Reason.INVALID_PARAMETER,
                f"recall handle of topic {recalled.topic}: expected {topic}",
            )
        properties = {
            "TIMER_DELIVER_MS": str(recalled.deliver_ms),
            "UNIQ_KEY": recalled.message_id,
            "TAGS": "_RECALL_TAG_",
        }
        try:
            message = Message.create(topic, b"0", properties=properties)
        except Invalid as error:
            raise Refused(Reason.INVALID_PARAMETER, str(error)) from error
        message = self.accept(SendRequest(group, message, default_topic=""))
        key = fitting.make_recall_key(topic, recalled.message_id).encode()
        message.properties = props.set_property(message.properties, b"TIMER_DEL_UNIQKEY", key)
        sent = self.put(message, topic)
        if not isinstance(sent, SendResult):
            await sent
        return recalled.message_id

    async def _wait(self, message: Message, result: PutMessageResult, topic: str) -> SendResult:
        if result.durable is not DURABLE:
            result = await wait_until_durable(result)
        await self._topics.wait_until_persisted(topic)
        sent = self._conclude(message, result)
        if not _has_timer(message):
            return sent
        stored = await self.store.look_message_by_offset_async(sent.physical_offset)
        return sent._replace(
            recall_handle=fitting.find_recall_handle(stored, self._settings.broker_name)
        )

    def _conclude(self, message: Message, result: PutMessageResult) -> SendResult:
        status = result.status
        if status is not _OK and status not in fitting.STORED:
            raise fitting.make_refusal(result)
        physical_offset = result.physical_offset
        return SendResult(
            status,
            message.queue_id,
            result.queue_offset,
            f"{self._host_text}{physical_offset:016X}",
            physical_offset,
            props.find_text(message.properties, b"UNIQ_KEY") or "",
        )

    def _find_or_make_topic(self, request: SendRequest, config: TopicConfig | None) -> TopicConfig:
        topic = request.message.topic
        if not self._settings.broker_permission & 2 and config is not None and config.order:
            raise Refused(
                Reason.NO_PERMISSION,
                f"the broker[{self._settings.broker_ip1}] sending message is forbidden",
            )
        try:
            check_topic_name(topic)
        except Invalid as error:
            raise Refused(Reason.INVALID_PARAMETER, str(error)) from error
        self.door.check_topic(topic, is_reply=request.is_reply)
        if config is not None:
            return config
        sys_flag = 0
        is_retry = topic.startswith(RETRY_PREFIX)
        if request.is_unit_mode:
            sys_flag = _UNIT_RETRY_TOPIC if is_retry else _UNIT_TOPIC
        made = self._topics.create_on_send(
            topic, request.default_topic, request.default_queue_nums, sys_flag
        )
        if made is None and is_retry:
            made = self._topics.create_on_send_back(topic, 1)
        if made is None:
            raise Refused(Reason.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        return made

    def _move_to_dead_letters(self, request: SendRequest) -> None:
        """Move a message sent to a retry topic to the dead letters if it has no attempts left.
        Clients send to a retry topic when they cannot send a message back."""
        message = request.message
        group = message.topic.removeprefix(RETRY_PREFIX)
        config = self._groups.find_group(group)
        if config is None:
            raise Refused(
                Reason.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
            )
        most = request.max_reconsume_times
        most = config.retry_max_times if most is None else most
        # An orderly consumer has no tries left. Older clients count one less.
        is_orderly = self._locks is not None and self._locks.has_locks(group)
        if is_orderly or message.reconsume_times > most:
            self._make_dead_letter(message)

    def _make_dead_letter(self, message: Message) -> None:
        group = message.topic.removeprefix(RETRY_PREFIX)
        message.topic = DLQ_PREFIX + group
        message.queue_id = 0
        table = props.decode_properties(message.properties)
        origin = table.get("UNIQ_KEY") or table.get("ORIGIN_MESSAGE_ID", "")
        properties = fitting.make_dead_letter_properties(message.properties, origin)
        message.properties = props.set_property(properties, b"DELAY", b"-1")
        self._topics.create_on_send_back(message.topic, 1)

    def _put_in_room(self, message: Message) -> PutMessageResult:
        """Put a message whose properties are too long into a retry topic or the dead letters,
        dropping some of the properties. A retry message that still does not fit goes to the dead
        letters."""
        put = self.store.put_message
        if message.topic.startswith(RETRY_PREFIX):
            result = fitting.put_fitting(put, message)
            if result.status is not _TOO_LONG:
                return result
            self._make_dead_letter(message)
        return fitting.put_fitting(put, message, fitting.DROPPED_OF_DEAD_LETTERS)


def _has_timer(message: Message) -> bool:
    return message.properties.find(b"TIMER_D") >= 0


def _split_pairs(properties: bytes, where: str) -> list[bytes]:
    """Split properties into name-value pairs, each with its trailing separator. Raises Refused for
    a pair without a separator between name and value."""
    pairs = [pair + b"\x02" for pair in properties.split(b"\x02") if pair]
    for pair in pairs:
        if b"\x01" not in pair:
            raise Refused(
                Reason.MESSAGE_ILLEGAL,
                f"the message is illegal: {where}: properties: expected name, byte 1, value, "
                f"found {pair[:64]!r}",
            )
    return pairs


_SALT: Final = os.urandom(4)
_counter = itertools.count(int.from_bytes(os.urandom(2), "big"))


def make_unique_key(host: bytes) -> str:
    """Return a UNIQ_KEY of 32 upper-case hex digits, built from the address, the process id, a
    random number of the process, the time and a counter. `host`: address, encoded as in a
    record."""
    now_ms = time.time_ns() // 1_000_000
    parts = (
        host[:4],
        (os.getpid() & 0xFFFF).to_bytes(2, "big"),
        _SALT,
        (now_ms & 0xFFFFFFFF).to_bytes(4, "big"),
        (next(_counter) & 0xFFFF).to_bytes(2, "big"),
    )
    return b"".join(parts).hex().upper()
