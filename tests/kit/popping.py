"""Sends pop requests, and parses the answers as Java's clients do."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tests.kit.consuming import GROUP, TOPIC, split_records
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.command import RemotingCommand


class PoppedMessage(NamedTuple):
    """A popped message with the receipt handle (POP_CK) that Java's client makes for it. `topic`:
    the topic to use in acknowledgements. `lite_topic`: the message's lite topic, or empty."""

    body: str
    topic: str
    queue_id: int
    offset: int
    extra_info: str
    reconsume_times: int
    lite_topic: str = ""

    @property
    def popped_ms(self) -> int:
        """Time of the delivery, epoch ms."""
        return int(self.extra_info.split(" ")[1])

    @property
    def due_ms(self) -> int:
        """End of the invisible time, epoch ms."""
        return self.popped_ms + int(self.extra_info.split(" ")[2])


async def pop(client: RemotingClient, **fields: object) -> RemotingCommand:
    """Pop from all queues of the topic T from the first message, without waiting."""
    return await client.request(
        RequestCode.POP_MESSAGE,
        {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": 60_000,
            "pollTime": 0,
            "bornTime": 0,
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": False,
            **fields,
        },
    )


def read_popped(
    answer: RemotingCommand, topic: str = TOPIC, group: str = GROUP
) -> list[PoppedMessage]:
    """Return the messages of an answer. As in Java's client, the messages of a queue are paired
    with its offsets in order."""
    fields = answer.ext_fields
    starts = _parse(fields["startOffsetInfo"])
    offsets = _parse(fields["msgOffsetInfo"])
    counts = dict(one.split(" ")[1:] for one in fields.get("orderCountInfo", "").split(";") if one)
    positions: dict[str, int] = {}
    popped = []
    for message in split_records(answer.body_bytes):
        name = message.topic
        retry = "0" if not name.startswith("%RETRY%") else "2" if "+" in name else "1"
        key = f"{retry} {message.queue_id}"
        position = positions[key] = positions.get(key, -1) + 1
        offset = int(offsets[key].split(",")[position])
        assert offset == message.queue_offset
        extra_info = " ".join(
            (
                starts[key],
                fields["popTime"],
                fields["invisibleTime"],
                fields["reviveQid"],
                retry,
                "b",
                str(message.queue_id),
                str(offset),
            )
        )
        separator = {"0": "", "1": "_", "2": "+"}[retry]
        real = topic if retry == "0" else f"%RETRY%{group}{separator}{topic}"
        times = counts.get(f"qo{message.queue_id}%{offset}", counts.get(str(message.queue_id)))
        popped.append(
            PoppedMessage(
                bytes(message.body).decode(),
                real,
                message.queue_id,
                offset,
                extra_info,
                message.reconsume_times if times is None else int(times),
            )
        )
    assert {key: len(text.split(",")) for key, text in offsets.items()} == {
        key: position + 1 for key, position in positions.items()
    }
    return popped


async def pop_lite(client: RemotingClient, **fields: object) -> RemotingCommand:
    """Pop from the client's lite topics without waiting."""
    common = {"maxMsgNum": 32, "invisibleTime": 60_000, "pollTime": 0, "bornTime": 0}
    return await client.request(RequestCode.POP_LITE_MESSAGE, {**common, "attemptId": "", **fields})


def read_popped_lite(answer: RemotingCommand, topic: str) -> list[PoppedMessage]:
    """Return the messages of an answer to `pop_lite`. `topic`: the parent topic."""
    fields = answer.ext_fields
    popped = []
    for message in split_records(answer.body_bytes):
        offset = int(message.properties["INNER_MULTI_QUEUE_OFFSET"])
        info = (
            f"0 {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 b 0 {offset}"
        )
        popped.append(
            PoppedMessage(
                bytes(message.body).decode(),
                topic,
                0,
                offset,
                info,
                message.reconsume_times,
                message.properties["__LITE_TOPIC"],
            )
        )
    return popped


def _parse(text: str) -> dict[str, str]:
    entries = [one.rsplit(" ", 1) for one in text.split(";")]
    parsed = dict(entries)
    assert len(parsed) == len(entries), f"an entry is there twice: {text}"
    return parsed


def _name(message: PoppedMessage, group: str) -> dict[str, object]:
    return {
        "consumerGroup": group,
        "topic": message.topic,
        "queueId": message.queue_id,
        "offset": message.offset,
        "extraInfo": message.extra_info,
        **({"liteTopic": message.lite_topic} if message.lite_topic else {}),
    }


async def ack(
    client: RemotingClient, message: PoppedMessage, group: str = GROUP, **fields: object
) -> RemotingCommand:
    """Acknowledge a message."""
    return await client.request(RequestCode.ACK_MESSAGE, {**_name(message, group), **fields})


async def ack_batch(client: RemotingClient, messages: Iterable[PoppedMessage]) -> RemotingCommand:
    """Acknowledge messages of one queue from one answer."""
    messages = list(messages)
    start, pop_time, invisible_time, revive, retry = messages[0].extra_info.split(" ")[:5]
    bits = sum(1 << (message.offset - int(start)) for message in messages)
    entry = {
        "c": GROUP,
        "t": TOPIC,
        "r": retry,
        "so": int(start),
        "q": messages[0].queue_id,
        "rq": int(revive),
        "pt": int(pop_time),
        "it": int(invisible_time),
        "b": base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode(),
    }
    body = msgspec.json.encode({"brokerName": "b", "acks": [entry]})
    return await client.request(RequestCode.BATCH_ACK_MESSAGE, body=body)


async def change_time(
    client: RemotingClient,
    message: PoppedMessage,
    invisible_ms: int,
    group: str = GROUP,
    **fields: object,
) -> tuple[RemotingCommand, PoppedMessage]:
    """Change the invisible time of a message. Return the answer and the message with its new
    handle."""
    answer = await client.request(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        {**_name(message, group), "invisibleTime": invisible_ms, **fields},
    )
    assert answer.code == 0, answer.remark
    parts = message.extra_info.split(" ")
    new = [str(message.offset), answer.ext_fields["popTime"], answer.ext_fields["invisibleTime"]]
    return answer, message._replace(extra_info=" ".join([*new, *parts[3:]]))
