"""A receive service on a small local store. A test can kill and restart the service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.kit.local_stores import START_MS, plain, put_all, small_config
from tieredstore.broker.clients.session import Subscription
from tieredstore.broker.pull import PullHold
from tieredstore.broker.receive.journal import JournalCalls, ReceiveJournal
from tieredstore.broker.receive.requests import Received, ReceiveRequest
from tieredstore.broker.receive.service import ReceiveService
from tieredstore.broker.receive.state import FROM_FIRST, ReceiveState
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager
from tieredstore.clock import ManualClock
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.record import StoredMessage

FROM_FIRST_GROUP = {"consumeFromWhere": FROM_FIRST}


class KeptDeadLetters:
    """Records dead letters. If `error` is set, a put raises it. `was_put` is set once a dead letter
    is stored, before the put returns."""

    def __init__(self) -> None:
        self.was_put = asyncio.Event()
        self.letters: list[tuple[str, str, int]] = []
        self.error: Exception | None = None

    async def send_to_dead_letters(self, group: str, message: StoredMessage, attempts: int) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.letters.append((group, bytes(message.body).decode(), attempts))
        self.was_put.set()
        await asyncio.sleep(0)  # until it is durable


class Receiving:
    """Topic T with `queues` queues, and group G. The group starts at the first message unless
    `attributes` say otherwise."""

    def __init__(
        self,
        folder: Path,
        *,
        queues: int = 2,
        retry_max_times: int = 3,
        attributes: dict[str, str] | None = None,
        is_synced: bool = False,
        max_bytes: int = 1 << 20,
        calls: JournalCalls | None = None,
    ) -> None:
        self.folder = folder
        self.clock = ManualClock(START_MS)
        self.store = DefaultMessageStore(small_config(folder / "store"), self.clock)
        self.store.load()
        self.store.start()
        settings = BrokerSettings()
        self.topics = TopicConfigManager(folder, settings, self.clock)
        self.topics.update_topic(TopicConfig(topic_name="T", read_queue_nums=queues))
        self.groups = SubscriptionGroupManager(folder, settings, self.clock)
        self.groups.update_group(
            SubscriptionGroupConfig(
                group_name="G",
                retry_max_times=retry_max_times,
                attributes=FROM_FIRST_GROUP if attributes is None else attributes,
            )
        )
        self.offsets = ConsumerOffsetManager(folder, self.clock)
        self.dead = KeptDeadLetters()
        self.live: set[tuple[str, str]] = set()
        self.is_synced = is_synced
        self.max_bytes = max_bytes
        self.calls = calls
        self.numbers = 0

    async def start(self) -> None:
        """Start the service, as after a restart."""
        self.hold = PullHold()
        self.hold.start()
        self.store.set_message_arriving_listener(self.hold.notify_arrived)
        self.journal = ReceiveJournal(
            self.folder / "receive",
            is_synced=self.is_synced,
            max_bytes=self.max_bytes,
            calls=self.calls,
        )
        self.state = ReceiveState(
            self.journal, self.store, self.topics, self.groups, self.offsets, self.clock
        )
        self.service = ReceiveService(
            self.state,
            self.hold,
            self.dead,
            lambda group, client_id: (group, client_id) in self.live,
        )
        await self.service.start()

    async def kill(self) -> None:
        """Stop like a killed process, without further writes."""
        for task in self.service._tasks:
            await task.stop()
        if self.journal._fd >= 0:
            self.journal._close_old()
            import os

            os.close(self.journal._fd)
            self.journal._fd = -1
        self.offsets = ConsumerOffsetManager(self.folder, self.clock)  # not persisted

    async def close(self) -> None:
        await self.service.stop()
        self.store.shutdown()

    def put(self, count: int = 1, queue_id: int = 0, message_group: str = "", **more: Any) -> None:
        """Put messages whose bodies are consecutive numbers."""
        properties = {"__SHARDINGKEY": message_group} if message_group else {}
        messages = []
        for _ in range(count):
            body = str(self.numbers).encode()
            messages.append(
                plain("T", queue_id, self.numbers, body=body, properties=properties, **more)
            )
            self.numbers += 1
        put_all(self.store, messages)

    async def receive(self, max_count: int = 32, **more: Any) -> list[Received]:
        """Receive the available messages, waiting for them up to `poll_ms`."""
        poll_ms = more.pop("poll_ms", 0)
        expression, topic = more.pop("expression", "*"), more.pop("topic", "T")
        more.setdefault("invisible_ms", 30_000)
        return await self.service.receive(
            ReceiveRequest(
                group=more.pop("group", "G"),
                topic=topic,
                subscription=Subscription.parse(topic, expression),
                max_count=max_count,
                deadline_ms=self.clock.now_ms() + poll_ms,
                **more,
            )
        )

    def offset(self, queue_id: int = 0) -> int | None:
        """Return the group's consumer offset."""
        return self.offsets.query_offset("G", "T", queue_id)


def bodies(received: list[Received]) -> list[int]:
    """Return the messages' bodies as numbers."""
    return [int(bytes(one.message.body)) for one in received]


def drive(folder: Path, test: Callable[[Receiving], Awaitable[None]], **more: Any) -> None:
    """Run a test on its own event loop, with a service on a folder."""

    async def run() -> None:
        receiving = Receiving(folder, **more)
        await receiving.start()
        try:
            await test(receiving)
        finally:
            await receiving.close()

    asyncio.run(run())
