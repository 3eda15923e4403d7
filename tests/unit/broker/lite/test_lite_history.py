"""Consumers read the history of lite topics from the tier, over remoting and gRPC."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.kit.consuming import split_records
from tests.kit.lite_lab import OK, Lab, run
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.local.cleaning.service import DiskWatch
from tieredstore.tier.store import TieredMessageStore

TIER = {
    "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
    "tieredBackendServiceProvider": "posix",
    "mappedFileSizeCommitLog": "4096",
    "deleteCommitLogFilesInterval": "0",
    "tieredStoreGroupCommitTimeout": "0",
}
BODIES = [b"%02d" % number + bytes(300) for number in range(9)]


def move_to_tier(store: Any) -> None:
    """Upload all messages and the units of lite topics, then delete the local files."""
    assert isinstance(store, TieredMessageStore)
    local: Any = store.next_store
    local.flush()
    store.dispatcher.scan(force=True)
    store.lite.run_once()
    watch = local.cleaning._disk
    assert isinstance(watch, DiskWatch)
    watch._measure = lambda _: 0.86
    while local.cleaning.run_once().log_files:
        pass


def test_a_session_is_replayed_from_the_tier(tmp_path: Path) -> None:
    async def test(lab: Lab) -> None:
        await lab.send("s", *BODIES)
        await lab.send("filler", *[bytes(1000)] * 12)
        store = lab.services.store
        await asyncio.to_thread(move_to_tier, store)
        queue = "%LMQ%$P$s"
        assert store.next_store.get_min_offset_in_queue(queue, 0) == len(BODIES)  # type: ignore[attr-defined]
        # a pull
        fields = {
            "consumerGroup": "G",
            "subscription": "*",
            "expressionType": "TAG",
            "topic": queue,
            "queueId": 0,
            "queueOffset": 2,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subVersion": 0,
        }
        answer = await lab.client.request(RequestCode.PULL_MESSAGE, fields)
        assert answer.code == OK, answer.remark
        assert [bytes(one.body) for one in split_records(answer.body_bytes)] == BODIES[2:]
        assert answer.ext_fields["nextBeginOffset"] == str(len(BODIES))
        # a consumer of lite topics that begins at the first message
        option = {"type": "POLICY", "value": 1}
        assert (await lab.subscribe("PARTIAL_ADD", "s", offsetOption=option)).code == OK
        _, bodies = await lab.take(32)
        assert bodies == BODIES

    run(tmp_path, test, **TIER)


def test_a_new_group_begins_at_the_last_message_of_a_long_history(tmp_path: Path) -> None:
    """As in Java's broker, a new group begins at the first message if it is still in the local
    store. Otherwise it begins at the last message."""

    async def test(lab: Lab) -> None:
        await lab.send("s", *BODIES)
        await lab.send("filler", *[bytes(1000)] * 12)
        await asyncio.to_thread(move_to_tier, lab.services.store)
        await lab.send("s", b"later", b"last")
        await lab.send("t", b"1", b"2")
        assert (await lab.subscribe("PARTIAL_ADD", "s", "t")).code == OK
        found: list[bytes] = []
        for _ in range(2):
            _, bodies = await lab.take(32)
            found += bodies
            if len(found) >= 3:
                break
        assert sorted(found) == [b"1", b"2", b"last"]

    run(tmp_path, test, **TIER)
