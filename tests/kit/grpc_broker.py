"""A broker's gRPC service on a real local store, and a client that uses no RocketMQ library."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

import grpc
import grpc.aio
import msgspec

from tests.kit.grpc_types import find_message, list_values
from tests.kit.local_stores import running, small_config
from tieredstore.broker.clients.consumers import ConsumerManager, ProducerManager
from tieredstore.broker.grpc.message_types import SERVICE_NAME, find_class, list_methods
from tieredstore.broker.grpc.server import GrpcServer
from tieredstore.broker.grpc.service import Service
from tieredstore.broker.lite.subscriptions import LiteSubscriptions
from tieredstore.broker.pull import PullHold
from tieredstore.broker.receive.journal import ReceiveJournal
from tieredstore.broker.receive.service import ReceiveService
from tieredstore.broker.receive.state import ReceiveState
from tieredstore.broker.send.send_back import SendBack
from tieredstore.broker.send.sender import MessageSender
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.settings import load_broker_settings
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.broker.transactions.service import TransactionService
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import FIELDS_BY_KEY, config_from_properties
from tieredstore.message.hosts import LOCALHOST

CODES = list_values("Code")
_METHODS = {method.name: method for method in list_methods()}


_ALL_TYPES: Final = {
    "brokerName": "broker-a",
    "enableTopicMessageTypeCheck": "false",
    "autoCreateMixedTopics": "true",
    "grpcClientConsumerMinLongPollingTimeoutMillis": "0",
}


class GrpcBroker:
    """A running gRPC service with its parts and its port."""

    def __init__(self, services: BrokerServices, service: Service, port: int) -> None:
        self.services = services
        self.service = service
        self.port = port

    def client(self, client_id: str = "client") -> GrpcClient:
        """Make a client, to be used with `async with`."""
        return GrpcClient(self.port, client_id)


class GrpcClient:
    """Client for every method of the gRPC protocol."""

    def __init__(self, port: int, client_id: str) -> None:
        self._channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", [("grpc.max_receive_message_length", 130 << 20)]
        )
        self._port = port
        self._metadata = (("x-mq-client-id", client_id), ("x-mq-language", "HTTP"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.close()

    async def call(self, method: str, request: Any, timeout_s: float = 20) -> Any:
        """Call a method that returns one response."""
        return await self._make(method, self._channel.unary_unary)(
            request, timeout=timeout_s, metadata=self._metadata
        )

    async def receive(self, request: Any, timeout_s: float = 20) -> list[Any]:
        """Call ReceiveMessage and return all responses."""
        call = self._make("ReceiveMessage", self._channel.unary_stream)
        return [one async for one in call(request, timeout=timeout_s, metadata=self._metadata)]

    def open_telemetry(self, timeout_s: float | None = None) -> Any:
        """Open a telemetry stream with `write` and `read`."""
        call = self._make("Telemetry", self._channel.stream_stream)
        return call(timeout=timeout_s, metadata=self._metadata)

    def make(self, name: str, **fields: Any) -> Any:
        """Make a request with the given fields. `topic` and `group` are names. With `endpoints`,
        add the broker's endpoints."""
        request = find_message(name)()
        for field in ("topic", "group"):
            if field in fields:
                getattr(request, field).name = fields.pop(field)
        if fields.pop("endpoints", False):
            self.set_endpoints(request.endpoints)
        for field, value in fields.items():
            setattr(request, field, value)
        return request

    def set_endpoints(self, endpoints: Any) -> None:
        """Set the address at which the client reaches the broker."""
        endpoints.scheme = list_values("AddressScheme")["IPv4"]
        endpoints.addresses.add(host="127.0.0.1", port=self._port)

    def _make(self, method: str, make: Any) -> Any:
        found = _METHODS[method]
        return make(
            f"/{SERVICE_NAME}/{method}",
            request_serializer=find_class(found.input_type).SerializeToString,
            response_deserializer=find_class(found.output_type).FromString,
        )


@asynccontextmanager
async def serving_grpc(
    root: Path,
    properties: dict[str, str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> AsyncIterator[GrpcBroker]:
    """Run a gRPC service on a store in `root`. Topics accept messages of all types unless
    `properties` restrict them."""
    settings = load_broker_settings({**_ALL_TYPES, **(properties or {})}, "test")
    sizes = {
        "mapped_file_size_commit_log_bytes": 16 << 20,
        "mapped_file_size_consume_queue_bytes": 20_000,
        "max_index_num": 2_000,
    }
    store_config = small_config(root, **sizes)
    if properties:
        loaded = config_from_properties(properties, origin="test").config
        names = {FIELDS_BY_KEY[key].name for key in properties if key in FIELDS_BY_KEY}
        given = {name: getattr(loaded, name) for name in names}
        store_config = msgspec.structs.replace(store_config, **given)
    with running(store_config, clock) as store:
        services = BrokerServices(
            settings=settings, store=store, store_config=store_config, clock=clock
        )
        config = root / "config"
        services.topics = TopicConfigManager(config, settings, clock)
        services.topics.add_system_topics()
        services.groups = SubscriptionGroupManager(config, settings, clock)
        services.producers = ProducerManager(clock)
        services.consumers = ConsumerManager(clock)
        services.sender = MessageSender(
            store,
            settings,
            services.topics,
            services.groups,
            LOCALHOST,
            fills_light_queues=lambda: store_config.fills_light_queues,
        )
        services.offsets = ConsumerOffsetManager(config, clock)
        services.hold = PullHold()
        services.hold.start()
        store.set_message_arriving_listener(services.hold.notify_arrived)
        services.subscriptions = LiteSubscriptions(settings, services.groups, clock)
        journal = ReceiveJournal(config / "receive", is_synced=False)
        services.receive = ReceiveService(
            ReceiveState(journal, store, services.topics, services.groups, services.offsets, clock),
            services.hold,
            SendBack(store, settings, services.topics, services.groups, is_read_only=False),
            lambda group, client: client in services.consumers.list_client_ids(group),
            subscriptions=services.subscriptions,
        )
        await services.receive.start()
        services.transactions = TransactionService(
            store, settings, services.sender, services.offsets, services.producers, clock
        )
        await services.transactions.load()
        services.transactions.start()
        service = Service(services)
        server = GrpcServer(service, None)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        await server.start(listener)
        try:
            yield GrpcBroker(services, service, port)
        finally:
            services.hold.stop()
            await services.receive.stop()
            await services.transactions.stop()
            await server.stop()


def codes(statuses: Sequence[Any]) -> list[str]:
    """Return the names of the statuses' codes."""
    names = {number: name for name, number in CODES.items()}
    return [names[status.code] for status in statuses]
