"""Messages of every kind for the Java checker, and the fields that it compares. The fields come
from the messages before they are put, not from stored messages."""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Iterator
from typing import Any

from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message

# Small files, so that every kind of file rolls several times.
BROKER_CONF = {
    "brokerClusterName": "LabCluster",
    "brokerName": "labBroker",
    "mappedFileSizeCommitLog": "262144",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
QUEUES = (("inter_one", 0), ("inter_two", 0), ("inter_two", 1))


def wanted_of(message: Message, result: Any, offset: int, **known: Any) -> dict[str, Any]:
    """Return the fields that check.sh compares, computed from the messages of a put."""
    body = bytes(message.body)
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": offset,
        "bodySHA256": hashlib.sha256(body).hexdigest(),
        "bodyLength": len(body),
        "bodyCRC": zlib.crc32(body) & 0x7FFFFFFF,
        "storeTimestamp": result.store_timestamp_ms,
        "bornTimestamp": message.born_timestamp_ms,
        "bornHost": "/10.1.2.3:40000",
        "flag": message.flag,
        "sysFlag": 0,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": 0,
        **known,
    }


def made(
    queue: tuple[str, int], number: int, source: random.Random
) -> tuple[Message, dict[str, Any]]:
    keys = [f"k{number}", f"group{number % 7}"][: number % 3]
    known: dict[str, Any] = {
        "uniqKey": f"7F00000100002A9F{source.getrandbits(64):016X}",
        "keys": " ".join(keys) or None,
        "tags": ("TagA", "标签D", None)[number % 3],
    }
    message = Message.create(
        queue[0],
        source.randbytes((0, 1, 300, 5000)[number % 4]),
        queue_id=queue[1],
        tags=known["tags"],
        keys=keys,
        uniq_key=known["uniqKey"],
        properties={"区域": f"東京-{number}", "seq": str(number)},
        flag=number,
        born_timestamp_ms=1_700_000_000_000 + number,
        born_host=("10.1.2.3", 40000),
        reconsume_times=number % 2,
    )
    known["properties"] = {"区域": f"東京-{number}", "seq": str(number)}
    return message, known


def fill(store: DefaultMessageStore) -> Iterator[dict[str, Any]]:
    """Put 500 single messages and 20 batches of 10 in three queues. Yield the expected fields."""
    source = random.Random(11)
    for number in range(500):
        message, known = made(QUEUES[number % 3], number, source)
        result = store.put_message(message)
        assert result.ok, result
        yield wanted_of(message, result, result.queue_offset, **known)
    for batch in range(20):
        pairs = [made(QUEUES[batch % 3], 1000 + batch * 10 + i, source) for i in range(10)]
        result = store.put_messages([message for message, _ in pairs])
        assert result.ok, result
        for offset, (message, known) in enumerate(pairs, result.queue_offset):
            yield wanted_of(message, result, offset, **known)
