"""Pops (code 200050), acknowledgements (200051, 200151) and changes of invisible times (200053)."""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Iterator
from typing import Final, Self

import msgspec

from tieredstore.broker.auth.policies import Action, Want
from tieredstore.broker.clients.assignment import ALL_QUEUES
from tieredstore.broker.pull import MAX_SUSPEND_MS
from tieredstore.broker.receive.polls import PollKey
from tieredstore.broker.receive.requests import (
    MAX_ATTEMPT_ID,
    RETRY_SOURCES,
    Received,
    ReceiveRequest,
    Source,
    limit_invisible_ms,
    name_source,
)
from tieredstore.broker.receive.service import Popped
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import (
    Group,
    Int32,
    Int64,
    JsonBody,
    Outcome,
    Request,
    RequestHeader,
    Topic,
    is_true,
)
from tieredstore.broker.remoting.handlers.base import (
    Handlers,
    answers,
    list_source_wants,
    succeed,
)
from tieredstore.broker.remoting.handlers.pull import parse_subscription
from tieredstore.broker.remoting.popped import (
    ORDER_QUEUE,
    ExtraInfo,
    encode_popped,
    make_fields,
    parse_extra_info,
)
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.groups import SubscriptionGroupConfig, check_group_of_client
from tieredstore.broker.state.topics import PERM_READ, TopicConfig
from tieredstore.errors import Busy, Invalid
from tieredstore.message.lite import LITE_QUEUE_ID, LiteTopic, parse_lite_topic

MAX_COUNT: Final = 32
"""Maximum number of messages in a response, as in Java."""
MAX_BYTES: Final = 8 << 20
"""Maximum size of a response in bytes. The first message may exceed it. Clients accept frames of 16
MiB."""
MAX_BATCHES: Final = 1_024
"""Maximum number of entries in one batch acknowledgement."""
MAX_BIT_SET_BYTES: Final = 1 << 20
"""Maximum size of all bit sets of one batch acknowledgement together, in bytes."""
MAX_ACKS: Final = 65_536
"""Maximum number of messages in one batch acknowledgement."""
_LATE_MS: Final = 500
"""Time after the end of a pop's wait at which the client is assumed to have given up, in ms."""
_MARGIN_MS: Final = 50
"""A waiting pop is answered this many ms before the end of its wait, as in Java."""


class PopQueueHeader(RequestHeader, kw_only=True):
    """Queues of a topic that a group pops. A negative `queue_id` means all queues. As in Java, the
    numeric fields are optional and default to 0."""

    consumer_group: Group
    topic: Topic
    queue_id: Int32 = 0


class PopHeader(PopQueueHeader, kw_only=True):
    """Header of POP_MESSAGE. Times are in ms. `born_time`: time of the request (epoch ms), or 0 for
    now. `init_mode`: where a new group starts, 0 for the first message and 1 for the last."""

    max_msg_nums: Int32 = 0
    invisible_time: Int64 = 0
    poll_time: Int64 = 0
    born_time: Int64 = 0
    init_mode: Int32 = 0
    exp_type: str = ""
    exp: str = ""
    order: str = "false"
    attempt_id: str = ""


class DeliveryHeader(RequestHeader, kw_only=True):
    """Delivery of a message. `topic`: topic that contains it, possibly a retry topic of the group.
    `extra_info`: receipt handle."""

    consumer_group: str
    topic: str
    queue_id: Int32
    offset: Int64
    extra_info: str
    lite_topic: str = ""

    @property
    def source_topic(self) -> str:
        """Topic that contains the message. For a lite topic, this is its light queue."""
        return LiteTopic(self.topic, self.lite_topic).queue if self.lite_topic else self.topic

    def list_wants(self, *actions: Action) -> Iterator[Want]:
        """Yield the permissions on the group and on the topic it consumes."""
        return list_source_wants(self.consumer_group, (self.topic,), *actions)


class ChangeHeader(DeliveryHeader, kw_only=True):
    """Header of CHANGE_MESSAGE_INVISIBLETIME. `invisible_time`: new invisible time from now, in ms.
    `suspend`: true if the last delivery does not count."""

    invisible_time: Int64
    suspend: str = "false"


class _BatchAck(msgspec.Struct):
    """Acknowledged messages of one queue from one response (Java's BatchAck). Field names may be
    short or long. `b`, `bit_set`: bit set in base64. Bit i stands for the message at the start
    offset plus i. `r`, `retry`: source of the messages."""

    c: str | None = None
    t: str | None = None
    r: str | None = None
    so: Int64 = 0
    q: Int32 = 0
    pt: Int64 = 0
    b: str | None = None
    consumer_group: str = msgspec.field(name="consumerGroup", default="")
    topic: str = ""
    retry: str = "0"
    start_offset: Int64 = msgspec.field(name="startOffset", default=0)
    queue_id: Int32 = msgspec.field(name="queueId", default=0)
    pop_time: Int64 = msgspec.field(name="popTime", default=0)
    bit_set: str = msgspec.field(name="bitSet", default="")

    @property
    def group(self) -> str:
        return self.consumer_group if self.c is None else self.c

    @property
    def topic_name(self) -> str:
        return self.topic if self.t is None else self.t

    def list_popped(self, offsets: Iterator[int]) -> Iterator[Popped]:
        """Yield the deliveries of the messages at these distances from the start offset. Raises
        Invalid."""
        retry = self.retry if self.r is None else self.r
        if retry not in _SOURCES:
            raise Invalid(f"batch of acknowledgements: retry: expected 0, 1 or 2, found {retry!r}")
        topic = name_source(self.group, self.topic_name, _SOURCES[retry])
        start = self.so or self.start_offset
        queue_id, pop_ms = self.q or self.queue_id, self.pt or self.pop_time
        for offset in offsets:
            yield Popped(self.group, topic, queue_id, start + offset, pop_ms)

    def decode_bits(self) -> bytes:
        """Decode Java's BitSet. Raises Invalid."""
        try:
            return binascii.a2b_base64(self.bit_set if self.b is None else self.b)
        except ValueError as error:
            raise Invalid(f"batch of acknowledgements: bit set: {error}") from None


_SOURCES: Final = {str(source.value): source for source in (Source.TOPIC, *RETRY_SOURCES)}


class BatchAckBody(JsonBody, kw_only=True):
    acks: list[_BatchAck] | None = None

    @classmethod
    def decode(cls, command: RemotingCommand) -> Self:
        """Decode the body of a command. An empty body is an empty batch. Raises
        msgspec.MsgspecError."""
        return super().decode(command) if command.body_bytes else cls()

    def list_wants(self, *actions: Action) -> Iterator[Want]:
        """Yield the permissions on the group and the topic of each entry."""
        for group, topic in dict.fromkeys((ack.group, ack.topic_name) for ack in self.acks or ()):
            yield from list_source_wants(group, (topic,), *actions)


class PopHandlers(Handlers):
    """Handlers for pops, acknowledgements and changes of invisible times."""

    @answers(RequestCode.POP_MESSAGE, PopHeader, Action.SUB)
    async def pop(self, request: Request[PopHeader]) -> RemotingCommand | None:
        """Deliver messages. If none are available, wait for one if the request allows that."""
        try:
            return await self._pop(request)
        except Refused as error:
            return refuse_with(error, {**make_fields(), "restNum": "0"})

    async def _pop(self, request: Request[PopHeader]) -> RemotingCommand | None:
        if request.command.is_one_way:  # no one gets the messages
            return None
        broker, header = self._broker, request.header
        now_ms = broker.clock.now_ms()
        born_ms = header.born_time or now_ms
        if is_late(born_ms, header.poll_time, now_ms):
            remark = "the pop waited for longer than its poll time"
            fields = {**make_fields(), "restNum": "0"}
            return RemotingCommand(ResponseCode.POLLING_TIMEOUT, fields, remark=remark)
        if header.max_msg_nums > MAX_COUNT:
            raise Refused(
                Reason.INVALID_PARAMETER,
                f"maxMsgNums: expected at most {MAX_COUNT}, found {header.max_msg_nums}",
            )
        group = check_popped(broker, header)
        check_attempt_id(header.attempt_id)
        is_ordered = is_true(header.order)
        queue_id = max(header.queue_id, ALL_QUEUES)
        key = PollKey(group.group_name, header.topic, queue_id)
        deadline_ms = find_deadline_ms(header.poll_time, born_ms, now_ms)
        is_full = deadline_ms > now_ms and not broker.receive.has_room(key)
        receive = ReceiveRequest(
            group=group.group_name,
            topic=header.topic,
            subscription=parse_subscription(header.topic, header.exp, header.exp_type),
            max_count=max(header.max_msg_nums, 1),
            invisible_ms=limit_invisible_ms(header.invisible_time),
            attempt_id=header.attempt_id,
            fifo=is_ordered or group.consume_message_orderly,
            deadline_ms=now_ms if is_full else deadline_ms,
            queue_id=queue_id,
            from_first=header.init_mode == 0,
            max_bytes=MAX_BYTES,
        )
        try:
            received = await broker.receive.receive(receive) if header.max_msg_nums > 0 else []
        except Busy:
            received, is_full = [], True
        return self._answer(request, receive, received, is_ordered=is_ordered, is_full=is_full)

    def _answer(
        self,
        request: Request[PopHeader],
        receive: ReceiveRequest,
        received: list[Received],
        *,
        is_ordered: bool,
        is_full: bool,
    ) -> RemotingCommand | None:
        broker = self._broker
        rest = str(broker.looks.count_rest(receive))
        if not received:
            code = ResponseCode.POLLING_FULL if is_full else ResponseCode.POLLING_TIMEOUT
            revive_queue = ORDER_QUEUE if is_ordered else 0
            fields = make_fields(broker.clock.now_ms(), receive.invisible_ms, revive_queue)
            fields["restNum"] = rest
            return RemotingCommand(code, fields, remark="NO_MESSAGE_IN_QUEUE")
        back = received
        try:
            request.require_again(Action.SUB)
            if not request.connection.is_open:
                return None
            fields, records, back = encode_popped(received, is_ordered=is_ordered)
        finally:
            if back:
                broker.receive.give_back(receive.group, receive.topic, back)
        fields["restNum"] = rest
        return RemotingCommand(ResponseCode.SUCCESS, fields, records, remark="FOUND")

    @answers(RequestCode.ACK_MESSAGE, DeliveryHeader, Action.SUB)
    def ack(self, request: Request[DeliveryHeader]) -> Outcome:
        """Acknowledge a message. As in Java, only its last delivery can be acknowledged. Others are
        ignored."""
        info = self._check_delivery(request.header, beyond_end=1)
        return self._finish((_name_delivery(request.header, info),))

    @answers(RequestCode.BATCH_ACK_MESSAGE, BatchAckBody, Action.SUB)
    def ack_batch(self, request: Request[BatchAckBody]) -> Outcome:
        """Acknowledge messages of several queues. Messages that were delivered again since are
        ignored."""
        acks = request.header.acks
        if not acks:
            raise Refused(Reason.NO_MESSAGE, "batch of acknowledgements: expected one at least")
        if len(acks) > MAX_BATCHES:
            raise Invalid(
                f"batch of acknowledgements: expected at most {MAX_BATCHES} entries, "
                f"found {len(acks)}"
            )
        return self._finish(_list_batch(acks))

    def _finish(self, deliveries: Iterable[Popped]) -> Outcome:
        """Acknowledge messages. The response waits for the disk if the flush mode requires it."""
        receive = self._broker.receive
        if receive.ack_popped(deliveries) and receive.journal.is_synced:
            return self._succeed_synced()
        return succeed()

    async def _succeed_synced(self) -> RemotingCommand:
        await self._broker.receive.journal.flush()
        return succeed()

    @answers(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeHeader, Action.SUB)
    def change(self, request: Request[ChangeHeader]) -> RemotingCommand:
        """Change the invisible time of a message, and return the time of the new delivery. As in
        Java, deliveries other than the last one are ignored."""
        header, broker = request.header, self._broker
        try:
            info = self._check_delivery(header, beyond_end=0)
        except Refused as error:
            return refuse_with(error, make_fields())
        changed = broker.receive.change_popped(
            _name_delivery(header, info),
            header.invisible_time,
            is_suspended=is_true(header.suspend),
        )
        if changed is None:
            # With the old time: the present one may be that of a current delivery.
            until_ms = broker.clock.now_ms() + limit_invisible_ms(header.invisible_time)
            return succeed(make_fields(info.pop_ms, until_ms - info.pop_ms, info.revive_queue))
        invisible_ms = changed.invisible_until_ms - changed.pop_ms
        return succeed(make_fields(changed.pop_ms, invisible_ms, info.revive_queue))

    def _check_delivery(self, header: DeliveryHeader, *, beyond_end: int) -> ExtraInfo:
        """Parse the receipt handle in a request. Raises Refused for an invalid handle, topic or
        offset. `beyond_end`: how far the offset may be beyond the queue's last message."""
        broker = self._broker
        config = _find_popped_topic(broker, header.topic)
        info = parse_extra_info(header.extra_info)
        name = header.source_topic
        if header.lite_topic:
            _check_lite(broker, header, info)
        end = broker.store.get_max_offset_in_queue(name, header.queue_id)
        # The topic may have had more queues.
        if header.queue_id < 0 or (header.queue_id >= config.read_queue_nums and end <= 0):
            raise Refused(
                Reason.MESSAGE_ILLEGAL,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}]",
            )
        begin = broker.store.get_min_offset_in_queue(name, header.queue_id)
        end += beyond_end
        if not begin <= header.offset < end:
            raise Refused(
                Reason.NO_MESSAGE,
                f"{header.topic}, queue {header.queue_id}: expected an offset of {begin} to "
                f"{end - 1}, found {header.offset}",
            )
        if info is None:
            raise Refused(
                Reason.SYSTEM_ERROR,
                "extraInfo: expected startOffset popTime invisibleTime reviveQid retry broker, "
                f"found {header.extra_info[:80]!r}",
            )
        return info


def _check_lite(broker: BrokerServices, header: DeliveryHeader, info: ExtraInfo | None) -> None:
    group = broker.groups.find_group(header.consumer_group)
    if group is None or group.lite_parent != header.topic:
        text = f"group {header.consumer_group}: expected one bound to {header.topic}"
    elif header.queue_id != LITE_QUEUE_ID or (info and info.revive_queue != ORDER_QUEUE):
        text = f"lite topic {header.lite_topic}: expected queue 0 and an ordered delivery"
    else:
        return
    raise Refused(Reason.INVALID_PARAMETER, text)


def refuse_with(error: Refused, fields: dict[str, str]) -> RemotingCommand:
    """Return a response that refuses a request. As in Java, it includes `fields`, the header fields
    of a successful response."""
    return RemotingCommand(int(error.reason), fields, remark=str(error))


def check_attempt_id(attempt_id: str) -> None:
    """Raise Refused for an attempt id that is too long to be kept in memory."""
    if len(attempt_id) > MAX_ATTEMPT_ID:
        raise Refused(
            Reason.INVALID_PARAMETER,
            f"attemptId: expected at most {MAX_ATTEMPT_ID} characters, found {len(attempt_id)}",
        )


def is_late(born_ms: int, poll_ms: int, now_ms: int) -> bool:
    """Return whether the client has given up its pop."""
    return now_ms - born_ms - poll_ms > _LATE_MS


def find_deadline_ms(poll_ms: int, born_ms: int, now_ms: int) -> int:
    """Return when the wait of a request ends, epoch ms."""
    if poll_ms <= 0:
        return now_ms
    return min(born_ms + poll_ms - _MARGIN_MS, now_ms + MAX_SUSPEND_MS)


def check_popped(broker: BrokerServices, header: PopQueueHeader) -> SubscriptionGroupConfig:
    """Return the configuration of the popping group. Raises Refused if the group may not read the
    queues. The checks are in Java's order."""
    topic = header.topic
    if not broker.settings.broker_permission & PERM_READ:
        raise Refused(Reason.NO_PERMISSION, "popping from this broker is forbidden")
    config = _find_popped_topic(broker, topic)
    if not config.is_readable:
        raise Refused(Reason.NO_PERMISSION, f"the topic[{topic}] popping message is forbidden")
    if header.queue_id >= config.read_queue_nums:
        raise Refused(
            Reason.INVALID_PARAMETER,
            f"queueId[{header.queue_id}] is illegal, topic:[{topic}] "
            f"topicConfig.readQueueNums:[{config.read_queue_nums}]",
        )
    name = header.consumer_group
    check_group_of_client(name)
    group: SubscriptionGroupConfig | None = broker.groups.find_group(name)
    if group is None:
        raise Refused(
            Reason.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist"
        )
    if not group.consume_enable:
        raise Refused(Reason.NO_PERMISSION, f"subscription group no permission, {name}")
    return group


def _find_popped_topic(broker: BrokerServices, topic: str) -> TopicConfig:
    """Return a topic or a light queue. Raises Refused for an unknown topic, and for the light queue
    of a lite topic, which has a pop request of its own."""
    config: TopicConfig | None = broker.topics.find_consumed(topic)
    if config is None or parse_lite_topic(topic) is not None:
        raise Refused(Reason.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
    return config


def _name_delivery(header: DeliveryHeader, info: ExtraInfo) -> Popped:
    place = header.source_topic, header.queue_id, header.offset
    return Popped(header.consumer_group, *place, info.pop_ms)


def _list_batch(acks: list[_BatchAck]) -> list[Popped]:
    found: list[Popped] = []
    size = 0
    for ack in acks:
        bits = ack.decode_bits()
        size += len(bits)
        if size > MAX_BIT_SET_BYTES:
            raise Invalid(
                f"batch of acknowledgements: expected bit sets of at most {MAX_BIT_SET_BYTES} "
                "bytes, found more"
            )
        for one in ack.list_popped(_list_bits(bits)):
            if len(found) >= MAX_ACKS:
                raise Invalid(
                    f"batch of acknowledgements: expected at most {MAX_ACKS} messages, found more"
                )
            found.append(one)
    return found


def _list_bits(bits: bytes) -> Iterator[int]:
    for number, byte in enumerate(bits):
        if byte:
            for bit in range(8):
                if byte >> bit & 1:
                    yield 8 * number + bit
