"""Parts of a broker for producers, over a real store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit.local_stores import START_MS
from tests.kit.store_type import STORE_TYPE
from tieredstore.broker.clients.consumers import ProducerManager, RebalanceLocks
from tieredstore.broker.delay.hook import DelayHook
from tieredstore.broker.delay.schedule import ScheduleMessageService
from tieredstore.broker.delay.timers import TimerMessageService
from tieredstore.broker.send.send_back import SendBack
from tieredstore.broker.send.sender import MessageSender, SendRequest, SendResult
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.broker.state.traffic import TrafficCounts
from tieredstore.broker.transactions.service import TransactionService
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.message.hosts import encode_host
from tieredstore.message.record import StoredMessage
from tieredstore.timestamps import parse_delay_levels

STORE_HOST = encode_host("127.0.0.1", 10911)


class Producing:
    """A store with the services that put messages into it and deliver delayed messages."""

    def __init__(
        self,
        root: Path,
        clock: ManualClock,
        *,
        store: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.root = root
        self.clock = clock
        config = StoreConfig(
            store_path_root_dir=str(root),
            store_type=STORE_TYPE,
            mapped_file_size_commit_log_bytes=8 << 20,
            mapped_file_size_consume_queue_bytes=20_000,
            **(store or {}),
        )
        self.settings = BrokerSettings(
            broker_name="b", broker_ip1="127.0.0.1", broker_cluster_name="C", **settings
        )
        self.topics = TopicConfigManager(root / "config", self.settings, clock)
        self.groups = SubscriptionGroupManager(root / "config", self.settings, clock)
        self.topics.add_system_topics()
        self.store = DefaultMessageStore(config, clock, store_host=STORE_HOST)
        self.store.load()
        self.store.start()
        delays_ms = parse_delay_levels(self.settings.message_delay_level)
        self.hook = DelayHook(delays_ms, clock, find_queue=self.topics.find_queue)
        self.hook.install(self.store)
        self.schedule = ScheduleMessageService(
            self.store, self.hook, delays_ms, root / "config", clock
        )
        self.timers = TimerMessageService(self.store, self.hook, root / "config", clock)
        self.locks = RebalanceLocks(clock)
        self.traffic = TrafficCounts()
        self.sender = MessageSender(
            self.store,
            self.settings,
            self.topics,
            self.groups,
            STORE_HOST,
            locks=self.locks,
            fills_light_queues=lambda: config.fills_light_queues,
            traffic=self.traffic,
        )
        self.send_back = SendBack(self.store, self.settings, self.topics, self.groups)
        self.offsets = ConsumerOffsetManager(root / "config", clock)
        self.producers = ProducerManager(clock)
        self.transactions = self.make_transactions()

    def make_transactions(self) -> TransactionService:
        """Create the transaction service, as a starting broker does."""
        return TransactionService(
            self.store, self.settings, self.sender, self.offsets, self.producers, self.clock
        )

    async def prepare(self, message: Message) -> SendResult:
        """Put a half message and wait until it is durable."""
        sent = self.transactions.submit(SendRequest("g", message))
        return sent if isinstance(sent, SendResult) else await sent

    async def send(self, topic: str = "T", body: bytes = b"body", **more: Any) -> Any:
        """Send one message. The broker chooses the queue if no id is given."""
        return await self.sender.send(self.make_request(topic, body, **more))

    def make_request(self, topic: str = "T", body: bytes = b"body", **more: Any) -> SendRequest:
        """Make a request to send one message."""
        return SendRequest("g", Message.create(topic, body, **{"queue_id": -1, **more}))

    def put_as_is(self, topic: str, properties: dict[str, str], body: bytes = b"x") -> Any:
        """Put a message without checks or hooks."""
        message = Message.create(topic, body, properties=properties)
        return self.hook.put_now(self.store, message)

    def read(self, topic: str = "T", queue_id: int = 0, offset: int = 0) -> list[StoredMessage]:
        """Return the messages of a queue from an offset on."""
        self.store.wait_until_dispatched()
        found: list[StoredMessage] = []
        while batch := self.store.get_message("g", topic, queue_id, offset, 32).messages:
            found += batch
            offset = found[-1].queue_offset + 1
        return found


@contextmanager
def producing(root: Path, clock: ManualClock | None = None, **settings: Any) -> Iterator[Producing]:
    """Create a broker's services over a started store, which is shut down at the end."""
    parts = Producing(root, clock or ManualClock(START_MS), **settings)
    try:
        yield parts
    finally:
        parts.store.shutdown()
