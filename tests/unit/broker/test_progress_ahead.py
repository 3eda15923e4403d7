"""After a power cut, progress files may contain offsets that the log has lost. Messages that get
these offsets later are treated as new."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.loops import on_loop
from tests.kit.producing import producing
from tests.kit.running_broker import running_broker
from tieredstore.broker.broker import Broker
from tieredstore.broker.transactions.messages import HALF_TOPIC, OP_TOPIC, CommitOrRollback
from tieredstore.broker.transactions.service import GROUP
from tieredstore.message.encoding import Message
from tieredstore.tier.store import TieredMessageStore


@on_loop
async def test_p70_levels_and_timers_go_on_where_the_log_ends(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        parts.schedule.offsets.set_offset(1, 7)
        progress = parts.timers.progress
        progress.first_offset = progress.next_offset = 7
        parts.schedule.start()
        parts.timers.start()
        await parts.schedule.stop()
        await parts.timers.stop()
        for number in range(9):
            due = {"DELAY": "1"} if number % 2 else {"TIMER_DELAY_SEC": "2"}
            await parts.send("T", b"%d" % number, queue_id=0, properties=due)
        parts.store.wait_until_dispatched()
        parts.clock.advance(5_000)
        await parts.schedule.deliver_due()
        await parts.timers.deliver_due()
        found = sorted(bytes(message.body) for message in parts.read())
        assert found == [b"%d" % number for number in range(9)]


@pytest.mark.parametrize("ahead", [HALF_TOPIC, OP_TOPIC])
@on_loop
async def test_p70_transactions_are_read_again_where_the_log_ends_before_their_progress(
    tmp_path: Path, ahead: str
) -> None:
    with producing(tmp_path) as parts:

        async def prepare(body: bytes) -> tuple[int, int]:
            half = Message.create("T", body, properties={"TRAN_MSG": "true", "PGROUP": "g"})
            sent = await parts.prepare(half)
            return sent.physical_offset, sent.queue_offset

        halves = [await prepare(b"ended"), await prepare(b"waits")]
        await parts.transactions.end("g", *halves[0], CommitOrRollback.COMMIT)
        await parts.transactions.write_ops()
        parts.store.wait_until_dispatched()
        parts.offsets.commit_offset(GROUP, HALF_TOPIC, 0, 2, is_own=True)
        parts.offsets.commit_offset(GROUP, OP_TOPIC, 0, 1, is_own=True)
        parts.offsets.commit_offset(GROUP, ahead, 0, 1_000, is_own=True)
        again = parts.make_transactions()
        await again.load()
        assert len(again._table) == 1
        halves.append(await prepare(b"new"))
        parts.store.wait_until_dispatched()
        for half in halves:
            await again.end("g", *half, CommitOrRollback.COMMIT)
        found = [bytes(message.body) for message in parts.read()]
        assert found == [b"ended", b"waits", b"new"]


async def put_all(broker: Broker, count: int, topic: str = "T") -> list[int]:
    """Put messages into queue 0 of a topic. Return their queue offsets."""
    messages = [Message.create(topic, b"x") for _ in range(count)]
    results = [await broker.services.store.put_message_async(one) for one in messages]
    return [result.queue_offset for result in results]


def empty_but_config(root: Path) -> None:
    for path in root.iterdir():
        if path.name != "config":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@on_loop
async def test_p70_offsets_of_groups_are_lowered_to_where_the_log_ends(tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with running_broker(root) as broker:
        await put_all(broker, 2)
        await put_all(broker, 3, "Whole")
    shutil.copytree(root, tmp_path / "older", ignore=shutil.ignore_patterns("config"))
    async with running_broker(root) as broker:
        await put_all(broker, 3)
        for group, topic, offset in (("g", "T", 5), ("h", "T", 1), ("g", "Whole", 3)):
            broker.services.offsets.commit_offset(group, topic, 0, offset)
        broker.services.offsets.commit_offset("g", "Gone", 0, 7)
    empty_but_config(root)
    shutil.copytree(tmp_path / "older", root, dirs_exist_ok=True)
    async with running_broker(root) as broker:
        offsets = broker.services.offsets
        assert await put_all(broker, 4) == [2, 3, 4, 5]
        assert offsets.query_offset("g", "T", 0) == 2
        assert offsets.query_offset("h", "T", 0) == 1
        assert offsets.query_offset("g", "Whole", 0) == 3
        assert offsets.query_offset("g", "Gone", 0) == 0


@on_loop
async def test_p70_offsets_of_queues_that_only_the_tier_has_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "store"
    keys: dict[str, Any] = {
        "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
        "tieredBackendServiceProvider": "posix",
        "tieredStoreFilePath": str(tmp_path / "tier"),
    }
    async with running_broker(root, **keys) as broker:
        await put_all(broker, 3)
        store = broker.services.store
        assert isinstance(store, TieredMessageStore)
        await asyncio.to_thread(store.dispatcher.scan, force=True)
        broker.services.offsets.commit_offset("g", "T", 0, 3)
    empty_but_config(root)
    levels = ("NOT_IN_DISK", "DISABLE", "NOT_IN_DISK")
    for number, level in enumerate(levels):
        more: dict[str, Any] = {
            "tieredStorageLevel": level,
            "tieredStoreAdopt": str(not number).lower(),
        }
        async with running_broker(root, **keys, **more) as broker:
            assert broker.services.offsets.query_offset("g", "T", 0) == 3
    async with running_broker(root, **keys) as broker:
        assert await put_all(broker, 1) == [3]
