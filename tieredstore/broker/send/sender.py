"""MessageSender: what producers send is checked, completed and put."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.send.outcome import STORED, make_refusal
from tieredstore.broker.send.queue_choice import QueueChooser
from tieredstore.broker.send.rebuilding import set_dead_letter_origin
from tieredstore.broker.send.recall_handles import (
    find_recall_handle,
    make_recall_key,
    parse_recall_handle,
)
from tieredstore.broker.send.unique_ids import make_unique_key
from tieredstore.broker.state.topics import check_topic_name
from tieredstore.contracts.message_store import (
    DURABLE,
    PutMessageResult,
    PutMessageStatus,
    wait_until_durable,
)
from tieredstore.errors import Invalid
from tieredstore.message import properties as props
from tieredstore.message import sysflag
from tieredstore.message.encoding import Message
from tieredstore.message.names import DLQ_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from tieredstore.broker.clients import RebalanceLocks
    from tieredstore.broker.settings import BrokerSettings
    from tieredstore.broker.state.groups import SubscriptionGroupManager
    from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager
    from tieredstore.contracts.message_store import MessageStore

REGION: Final = "DefaultRegion"
"""Value of MSG_REGION."""
_NOT_ALLOWED: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
_OK: Final = PutMessageStatus.PUT_OK
_UNIT_TOPIC: Final = 1
_UNIT_RETRY_TOPIC: Final = 2


class SendRequest(msgspec.Struct, gc=False):
    """A message that a producer sends. Its queue id -1: the broker chooses.

    default_topic, default_queue_nums: after what, and with how many queues at most, an unknown
    topic is made; max_reconsume_times: of a message for a `%RETRY%` topic, None: the group's.
    """

    group: str
    message: Message
    default_topic: str = "TBW102"
    default_queue_nums: int = 4
    max_reconsume_times: int | None = None
    is_unit_mode: bool = False


class SendResult(NamedTuple):
    """Where a message was stored. message_id: offset message id (of a batch: of each, joined by
    commas); transaction_id: its UNIQ_KEY; recall_handle: of a timer message, else empty."""

    status: PutMessageStatus
    queue_id: int
    queue_offset: int
    message_id: str
    physical_offset: int
    transaction_id: str
    recall_handle: str = ""


class MessageSender:
    """Puts what producers send, after Java's checks. Used on the loop only.

    store_host: of the store's records; locks: of orderly consumers, whose messages go from a retry
    topic straight to the dead letters; is_read_only: whether nothing is taken from anybody.
    """

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
    ) -> None:
        self.store = store
        self._locks = locks
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._store_host = store_host
        self._host_text = store_host.hex().upper()
        self._is_read_only = is_read_only
        self._queues = QueueChooser()
        self._suffix = props.encode_properties(
            {"CLUSTER": settings.broker_cluster_name, "MSG_REGION": REGION, "TRACE_ON": "true"}
        )

    async def send(self, request: SendRequest) -> SendResult:
        """Put a message and wait until it is as durable as the flush mode promises. Raises Refused
        for what is not stored."""
        sent = self.submit(request)
        return sent if isinstance(sent, SendResult) else await sent

    def submit(self, request: SendRequest) -> SendResult | Awaitable[SendResult]:
        """Put a message: its result, or what to wait for where a flush has to confirm it, or its
        topic is new. Raises Refused."""
        message = self.accept(request)
        return self.put(message, message.topic)

    def put(self, message: Message, topic: str) -> SendResult | Awaitable[SendResult]:
        """Put a message that was accepted, as `submit` does. topic: where it is to be read."""
        result = self.store.put_message(message)
        if (
            result.durable is DURABLE
            and self._topics.is_persisted(topic)
            and not _has_timer(message)
        ):
            return self._conclude(message, result)
        return self._wait(message, result, topic)

    def accept(self, request: SendRequest) -> Message:
        """Check a message and complete it: topic, queue, properties. Raises Refused."""
        message = request.message
        topic = message.topic
        if self._is_read_only:
            raise Refused(RefusalReason.NO_PERMISSION, "the broker is read-only", topic=topic)
        config = self._topics.find_topic(topic)
        if config is None or topic in _NOT_ALLOWED or self._settings.broker_permission & 2 == 0:
            config = self._find_or_make_topic(request, config)
        if not message.body:
            raise Refused(RefusalReason.MESSAGE_ILLEGAL, "the message has no body", topic=topic)
        if message.queue_id < 0:
            if config.write_queue_nums <= 0:
                raise Refused(
                    RefusalReason.NO_PERMISSION, f"topic {topic} has no queue to write", topic=topic
                )
            message.queue_id = self._queues.choose(config.write_queue_nums, message.properties)
        elif message.queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            raise Refused(
                RefusalReason.INVALID_PARAMETER,
                f"request queueId[{message.queue_id}] is illegal, topic {topic} has "
                f"{config.write_queue_nums} queues to write, producer group {request.group}",
                topic=topic,
            )
        if config.topic_filter_type == "MULTI_TAG":
            message.sys_flag |= sysflag.MULTI_TAGS
        properties = message.properties
        if (
            properties.find(b"CLUSTER\x01") >= 0
            or properties.find(b"\x01\x02") >= 0
            or properties.find(b"POP_CK\x01") >= 0
        ):
            properties = _remove_own(properties)
        if properties and properties[-1] != 2:
            properties += b"\x02"
        if properties.find(b"UNIQ_KEY\x01") < 0:
            properties += b"UNIQ_KEY\x01%s\x02" % make_unique_key(self._store_host).encode()
        message.properties = properties + self._suffix
        if topic[0] == "%" and topic.startswith(RETRY_PREFIX):
            self._move_to_dead_letters(request)
        return message

    async def send_batch(self, request: SendRequest, messages: Sequence[Message]) -> SendResult:
        """Put messages of one queue with consecutive offsets, all or none. Raises Refused.

        The request's message has what they share: topic, queue, flags of the system, times, host,
        and properties for those that do not have them themselves.
        """
        shared = request.message
        if shared.topic.startswith(RETRY_PREFIX):
            raise Refused(
                RefusalReason.MESSAGE_ILLEGAL,
                f"batch request does not support retry group {shared.topic}",
                topic=shared.topic,
            )
        if not messages:
            raise Refused(RefusalReason.MESSAGE_ILLEGAL, "a batch of no messages")
        shared = self.accept(request)
        common = props.remove_property(shared.properties, b"UNIQ_KEY")
        pairs = [pair + b"\x02" for pair in common.split(b"\x02") if pair]
        batch = [
            msgspec.structs.replace(
                shared,
                body=message.body,
                flag=message.flag,
                properties=self._complete(message.properties, pairs),
            )
            for message in messages
        ]
        result = self.store.put_messages(batch)
        sent = await self._wait(shared, result, shared.topic)
        return sent._replace(message_id=",".join(self._list_ids(batch, result)))

    def _complete(self, properties: bytes, pairs: list[bytes]) -> bytes:
        if properties and properties[-1] != 2:
            properties += b"\x02"
        marked = b"\x02" + properties
        if marked.find(b"\x02UNIQ_KEY\x01") < 0:
            properties += b"UNIQ_KEY\x01%s\x02" % make_unique_key(self._store_host).encode()
        lacking = [
            pair for pair in pairs if marked.find(b"\x02" + pair[: pair.index(b"\x01") + 1]) < 0
        ]
        return properties + b"".join(lacking)

    def _list_ids(self, batch: list[Message], result: PutMessageResult) -> Iterator[str]:
        sizes = [len(message.body) + len(message.properties) for message in batch]
        # Records of one topic and one producer differ in nothing else.
        fixed = (result.wrote_bytes - sum(sizes)) // len(batch)
        position = result.physical_offset
        for size in sizes:
            yield f"{self._host_text}{position:016X}"
            position += fixed + size

    async def recall(self, group: str, topic: str, handle: str) -> str:
        """Take back a timer message that is not due yet; returns its UNIQ_KEY. Whether the message
        was there at all is not known. Raises Refused, also when it is due already."""
        try:
            recalled = parse_recall_handle(handle)
        except Invalid as error:
            raise Refused(RefusalReason.INVALID_PARAMETER, str(error)) from error
        if recalled.topic != topic:
            raise Refused(
                RefusalReason.INVALID_PARAMETER,
                f"recall handle of topic {recalled.topic}: expected {topic}",
            )
        properties = {
            "TIMER_DELIVER_MS": str(recalled.deliver_ms),
            "TIMER_DEL_UNIQKEY": make_recall_key(topic, recalled.message_id),
            "UNIQ_KEY": recalled.message_id,
            "TAGS": "_RECALL_TAG_",
        }
        message = Message.create(topic, b"0", properties=properties)
        await self.send(SendRequest(group, message, default_topic=""))
        return recalled.message_id

    async def _wait(self, message: Message, result: PutMessageResult, topic: str) -> SendResult:
        if result.durable is not DURABLE:
            result = await wait_until_durable(result)
        await self._topics.wait_until_persisted(topic)
        sent = self._conclude(message, result)
        if not _has_timer(message):
            return sent
        stored = await self.store.look_message_by_offset_async(sent.physical_offset)
        return sent._replace(recall_handle=find_recall_handle(stored, self._settings.broker_name))

    def _conclude(self, message: Message, result: PutMessageResult) -> SendResult:
        status = result.status
        if status is not _OK and status not in STORED:
            raise make_refusal(result)
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
                RefusalReason.NO_PERMISSION,
                f"the broker[{self._settings.broker_ip1}] sending message is forbidden",
                topic=topic,
            )
        try:
            check_topic_name(topic)
        except Invalid as error:
            raise Refused(RefusalReason.INVALID_PARAMETER, str(error), topic=topic) from error
        if topic in _NOT_ALLOWED:
            raise Refused(
                RefusalReason.NO_PERMISSION,
                f"Sending message to topic[{topic}] is forbidden.",
                topic=topic,
            )
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
            raise Refused(
                RefusalReason.TOPIC_NOT_EXIST,
                f"topic[{topic}] not exist, apply first please!",
                topic=topic,
            )
        return made

    def _move_to_dead_letters(self, request: SendRequest) -> None:
        """A message that a client sends to a retry topic by itself, since it could not send it
        back, ends with the dead letters like any other."""
        message = request.message
        group = message.topic.removeprefix(RETRY_PREFIX)
        config = self._groups.find_group(group)
        if config is None:
            raise Refused(
                RefusalReason.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group}",
                topic=message.topic,
            )
        most = request.max_reconsume_times
        most = config.retry_max_times if most is None else most
        # An orderly consumer has tried as often as it may: older clients count one less.
        is_orderly = self._locks is not None and self._locks.has_locks(group)
        if is_orderly or message.reconsume_times > most:
            message.topic = DLQ_PREFIX + group
            message.queue_id = 0
            table = props.decode_properties(message.properties)
            origin = table.get("UNIQ_KEY") or table.get("ORIGIN_MESSAGE_ID", "")
            properties = set_dead_letter_origin(message.properties, origin)
            message.properties = props.set_property(properties, b"DELAY", b"-1")
            self._topics.create_on_send_back(message.topic, 1)


def _has_timer(message: Message) -> bool:
    return message.properties.find(b"TIMER_D") >= 0


def _remove_own(properties: bytes) -> bytes:
    """Properties without what the broker sets itself, and without empty values, as Java keeps
    them."""
    table = props.decode_properties(properties)
    for name in ("CLUSTER", "MSG_REGION", "TRACE_ON", "POP_CK"):
        table.pop(name, None)
    return props.encode_properties(table)
