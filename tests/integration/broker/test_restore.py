"""A broker whose disk was lost is restored from its tier, and consumers continue."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.consuming import (
    GROUP,
    TOPIC,
    ServedBroker,
    join,
    play,
    pull_messages,
    split_records,
)
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import ResponseCode
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.tier.store import TieredMessageStore

UPLOADED, LOST = 8, 3
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"


def settings(root: Path, **more: str) -> dict[str, str]:
    return {
        "messageStorePlugIn": "tiered",
        "tieredBackendServiceProvider": "posix",
        "tieredStoreFilePath": str(root / "tier"),
        "tieredStoreGroupCommitTimeout": "0",
        "mappedFileSizeCommitLog": str(1 << 16),
        **more,
    }


def body(number: int) -> bytes:
    return b"message %d" % number


async def put(broker: ServedBroker, first: int, stop: int) -> None:
    await broker.put(*(Message.create(TOPIC, body(n), keys=["k"]) for n in range(first, stop)))


def upload(broker: ServedBroker) -> None:
    store: object = broker.services.store
    assert isinstance(store, TieredMessageStore)
    assert isinstance(store.next_store, DefaultMessageStore)
    store.next_store.flush()
    store.dispatcher.scan(force=True)


async def live_and_consume(broker: ServedBroker) -> None:
    """Run a broker that does not upload its last messages, although a group consumes them."""
    services = broker.services
    services.topics.update_topic(TopicConfig(topic_name="made", read_queue_nums=3))
    services.groups.update_group(SubscriptionGroupConfig(group_name=GROUP, retry_max_times=7))
    await put(broker, 0, UPLOADED)
    await asyncio.to_thread(upload, broker)
    services.offsets.commit_offset(GROUP, TOPIC, 0, 5)
    services.offsets.commit_offset("fast", TOPIC, 0, UPLOADED + LOST)
    services.offsets.commit_offset("CID_RMQ_SYS_TRANS", HALF, 0, 9)


async def consume(broker: ServedBroker, offset: int) -> list[tuple[int, bytes]]:
    """Return the messages that a consumer reads from the tier and from the new store, starting at
    an offset."""
    found: list[tuple[int, bytes]] = []
    async with await RemotingClient.open(broker.address) as client:
        await join(client, "c")
        while (response := await pull_messages(client, offset)).code == ResponseCode.SUCCESS:
            records = split_records(response.body_bytes)
            found += [(record.queue_offset, bytes(record.body)) for record in records]
            offset = found[-1][0] + 1
    return found


async def go_on(broker: ServedBroker) -> None:
    services = broker.services
    made = services.topics.find_topic("made")
    assert made is not None
    assert made.read_queue_nums == 3
    group = services.groups.find_group(GROUP)
    assert group is not None
    assert group.retry_max_times == 7
    assert services.offsets.query_offset(GROUP, TOPIC, 0) == 5
    assert services.offsets.query_offset("fast", TOPIC, 0) == UPLOADED
    assert not services.offsets.list_offsets("CID_RMQ_SYS_TRANS", HALF)
    assert services.store.get_max_offset_in_queue(TOPIC, 0) == UPLOADED
    await put(broker, UPLOADED, UPLOADED + 4)
    assert await consume(broker, 5) == [(n, body(n)) for n in range(5, UPLOADED + 4)]
    await asyncio.to_thread(upload, broker)


@pytest.mark.parametrize("store_type", ["default", "defaultRocksDB"])
def test_l16_a_broker_goes_on_from_its_tier_alone(tmp_path: Path, store_type: str) -> None:
    keys = settings(tmp_path, storeType=store_type)
    play(tmp_path / "store", live_and_consume, **keys)
    for _ in range(2):  # and from what the restored one has left
        shutil.rmtree(tmp_path / "store")
        ran = tieredstore(
            "restore", "--tier", tmp_path / "tier", "--store", tmp_path / "store",
            "--output", "json",
        )  # fmt: skip
        assert ran.code == 0, ran.err
        if (end := ran.record["queue_ends"][0]["end_offset"]) == UPLOADED:
            play(tmp_path / "store", go_on, **keys)
    assert end == UPLOADED + 4
    checked = tieredstore("verify", "--tier", tmp_path / "tier", "--output", "json", "--quiet")
    assert (checked.code, checked.record["damage"]) == (0, 0)
