"""PluginMessageStore: base class of store plugins (`messageStorePlugIn`). A plugin is a store that
wraps another store. The registry creates it with the class method `from_config(next_store, loaded,
clock)`. The first plugin named in `messageStorePlugIn` is the outermost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self, cast

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.message_store import (
    BoundaryType,
    GetMessageResult,
    GetRequest,
    HostedStore,
    MessageArrivingListener,
    MessageReader,
    MessageStore,
    PutMessageHook,
    PutMessageResult,
)
from tieredstore.service_thread import MonitoredServices, ServiceHealth

if TYPE_CHECKING:
    from tieredstore.config import LoadedConfig
    from tieredstore.contracts.dispatch_source import DispatchSource
    from tieredstore.message.encoding import Message
    from tieredstore.message.record import StoredMessage


class PluginMessageStore(MessageReader):
    """Store that forwards every call to the next store (Java's AbstractPluginMessageStore). A
    plugin overrides the methods it changes."""

    def __init__(self, next_store: MessageStore) -> None:
        self.next_store = next_store

    @classmethod
    def from_config(
        cls,
        next_store: MessageStore,
        loaded: LoadedConfig,  # noqa: ARG003
        clock: Clock = SYSTEM_CLOCK,  # noqa: ARG003
    ) -> Self:
        """Create the plugin from a broker's configuration."""
        return cls(next_store)

    def load(self) -> None:
        self.next_store.load()

    def start(self) -> None:
        self.next_store.start()

    def shutdown(self) -> None:
        self.next_store.shutdown()

    def health(self) -> Sequence[ServiceHealth]:
        """Return the health of the next store's background loops, or nothing if it does not report
        any."""
        store = self.next_store
        return store.health() if isinstance(store, MonitoredServices) else []

    def put_message(self, message: Message) -> PutMessageResult:
        return self.next_store.put_message(message)

    def put_messages(self, messages: Sequence[Message]) -> PutMessageResult:
        return self.next_store.put_messages(messages)

    async def put_message_async(self, message: Message) -> PutMessageResult:
        return await self.next_store.put_message_async(message)

    async def put_messages_async(self, messages: Sequence[Message]) -> PutMessageResult:
        return await self.next_store.put_messages_async(messages)

    def wait_until_visible(self, result: PutMessageResult) -> None:
        self.next_store.wait_until_visible(result)

    def get(self, request: GetRequest) -> GetMessageResult:
        return self.next_store.get(request)

    async def get_async(self, request: GetRequest) -> GetMessageResult:
        return await self.next_store.get_async(request)

    def look_message_by_offset(self, physical_offset: int) -> StoredMessage | None:
        return self.next_store.look_message_by_offset(physical_offset)

    async def look_message_by_offset_async(self, physical_offset: int) -> StoredMessage | None:
        return await self.next_store.look_message_by_offset_async(physical_offset)

    def get_min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        return self.next_store.get_min_offset_in_queue(topic, queue_id)

    def get_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        return self.next_store.get_max_offset_in_queue(topic, queue_id)

    def get_offset_in_queue_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: int,
        boundary: BoundaryType = BoundaryType.LOWER,
    ) -> int:
        return self.next_store.get_offset_in_queue_by_time(topic, queue_id, timestamp_ms, boundary)

    def get_earliest_message_time(
        self, topic: str | None = None, queue_id: int | None = None
    ) -> int:
        return self.next_store.get_earliest_message_time(topic, queue_id)

    def get_message_store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        return self.next_store.get_message_store_timestamp(topic, queue_id, offset)

    def query_message(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[StoredMessage]:
        return self.next_store.query_message(topic, key, max_count, begin_ms, end_ms)

    def delete_topics(self, topics: set[str]) -> int:
        return self.next_store.delete_topics(topics)

    @property
    def dispatch_source(self) -> DispatchSource:
        return self.next_store.dispatch_source

    # Methods of a `HostedStore`, where the next store is one.

    def add_put_message_hook(self, hook: PutMessageHook) -> None:
        cast(HostedStore, self.next_store).add_put_message_hook(hook)

    def set_message_arriving_listener(self, listener: MessageArrivingListener | None) -> None:
        cast(HostedStore, self.next_store).set_message_arriving_listener(listener)
