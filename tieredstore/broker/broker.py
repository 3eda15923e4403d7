"""Broker: creates, starts and stops all parts of a broker in order."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, Protocol, Self, cast, runtime_checkable

from tieredstore import registry
from tieredstore.broker.auth.access import AccessControl
from tieredstore.broker.auth.users import AclManager, UserManager
from tieredstore.broker.background import MAX_DOUBLINGS, LookUps, PeriodicTask
from tieredstore.broker.clients.consumers import ConsumerManager, ProducerManager, RebalanceLocks
from tieredstore.broker.delay.hook import DelayHook
from tieredstore.broker.delay.schedule import ScheduleMessageService
from tieredstore.broker.delay.timers import TimerMessageService
from tieredstore.broker.grpc.server import GrpcServer
from tieredstore.broker.grpc.service import Service
from tieredstore.broker.history import FollowTier, TierHistory
from tieredstore.broker.lite.expiry import LiteExpiry
from tieredstore.broker.lite.subscriptions import LiteSubscriptions
from tieredstore.broker.namesrv.route import KeyValueManager, RouteTable
from tieredstore.broker.operations.exporter import OtlpExporter
from tieredstore.broker.operations.health import find_tier, list_start_lines
from tieredstore.broker.operations.operations import Operations
from tieredstore.broker.ports import Sockets, bind_ports
from tieredstore.broker.pull import MessagePuller, PullHold
from tieredstore.broker.receive.journal import ReceiveJournal
from tieredstore.broker.receive.looks import ReceiveLooks
from tieredstore.broker.receive.service import ReceiveService
from tieredstore.broker.receive.state import ReceiveState
from tieredstore.broker.remoting.codes import NOT_ON_FAST_PORT
from tieredstore.broker.remoting.connection import RemotingLimits
from tieredstore.broker.remoting.handler_table import HandlerTable, RemotingGuard
from tieredstore.broker.remoting.handlers.base import make_handler_table
from tieredstore.broker.remoting.registration import NameServerRegistration
from tieredstore.broker.remoting.server import RemotingServer
from tieredstore.broker.remoting.topic_queues import RoutedQueues
from tieredstore.broker.send.door import Door, PutGuard
from tieredstore.broker.send.lite import LightQuota
from tieredstore.broker.send.send_back import SendBack
from tieredstore.broker.send.sender import MessageSender
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.settings import BrokerSettings, load_broker_settings
from tieredstore.broker.state.backup import check_format
from tieredstore.broker.state.config_manager import PersistService
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager, find_next_offset
from tieredstore.broker.state.request_modes import RequestModeManager
from tieredstore.broker.state.statistics import SAMPLE_INTERVAL_MS, BrokerStatistics
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.broker.tls import TlsMode, load_tls, make_server_context
from tieredstore.broker.transactions.service import TransactionService
from tieredstore.broker_name import add_remembered_name
from tieredstore.clock import SYSTEM_CLOCK, Clock, RetentionClock
from tieredstore.config import LoadedConfig, StoreConfig, config_from_properties, read_broker_conf
from tieredstore.contracts.message_store import HostedStore
from tieredstore.contracts.wrapping import list_layers
from tieredstore.message.hosts import encode_host, join_address, strip_brackets
from tieredstore.service_thread import MonitoredServices, ServiceHealth
from tieredstore.timestamps import parse_delay_levels

SILENCE_CHECK_MS: Final = 10_000
STORE_STOP_S: Final = 12
"""Time limit for the shutdown of the store in `stop`, in seconds. A tier that does not respond
would block it for longer."""
_NAMED_TOPICS: Final = 5
ABORT_FILE: Final = "abort"
"""File in the root of an open store. If a start finds it, the last stop was unclean."""
_log = logging.getLogger(__name__)


@runtime_checkable
class FlushedStore(Protocol):
    """Store that can be flushed."""

    def flush(self) -> None: ...


class Broker:
    """Broker that serves a message store on the current event loop. A start binds the ports,
    recovers the store, loads the files of `config/`, starts the services, and finally listens.
    `stop` reverses this order. Long blocking calls (load, shutdown) run in a thread."""

    limits = RemotingLimits()
    """Limits of each remoting connection, and of all connections together."""

    def __init__(
        self,
        loaded: LoadedConfig,
        settings: BrokerSettings,
        clock: Clock = SYSTEM_CLOCK,
        *,
        follow_tier: FollowTier | None = None,
    ) -> None:
        self.loaded = loaded
        self.settings = settings
        self.clock = clock
        self.addresses: dict[str, str] = {}
        """Listening addresses (`ip:port`) by protocol."""
        self.is_abandoned = False
        """True if `stop` gave up on the shutdown of the store. The process must then exit without
        waiting for the store, and the next start recovers it."""
        self._running = AsyncExitStack()
        self._follow_tier = follow_tier
        self._services: BrokerServices | None = None
        self._health_of: list[Callable[[], list[ServiceHealth]]] = []

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], *, origin: str, clock: Clock = SYSTEM_CLOCK
    ) -> Self:
        """Create a broker from the keys of a broker.conf. Raises Invalid."""
        properties = add_remembered_name(properties, StoreConfig().store_path_root_dir)
        loaded = config_from_properties(properties, origin=origin, serving=True)
        return cls(loaded, load_broker_settings(properties, origin), clock)

    @classmethod
    def from_file(cls, path: Path, clock: Clock = SYSTEM_CLOCK) -> Self:
        """Create a broker from a broker.conf. Raises Invalid."""
        return cls.from_properties(read_broker_conf(path), origin=str(path), clock=clock)

    @property
    def services(self) -> BrokerServices:
        """Parts of the broker. Available once `start` has created them."""
        assert self._services is not None, "the broker is not started"
        return self._services

    async def start(self, before_serving: Callable[[], object] | None = None) -> None:
        """Recover the store and start serving. `before_serving`: called once everything is loaded.
        If the start fails, the parts already started are stopped. Raises Invalid, Fenced, Corrupt
        or Unavailable."""
        async with AsyncExitStack() as starting:
            sockets = await self._load(starting)
            if before_serving is not None:
                before_serving()
            await self._serve(sockets, starting)
            self._running = starting.pop_all()

    async def _load(self, starting: AsyncExitStack) -> Sockets:
        settings = self.settings
        sockets = bind_ports(settings, starting)
        services = self._services = await self._open_store(starting)
        services.grpc_address = join_address(settings.broker_ip1, settings.grpc_server_port)
        await self._load_config(services, starting)
        self._make_clients(services, starting)
        self._follow_history(services, starting)
        await self._start_delays(services, starting)
        self._make_senders(services)
        await self._start_transactions(services, starting)
        await self._start_receiving(services, starting)
        await self._start_statistics(services, starting)
        return sockets

    async def _serve(self, sockets: Sockets, starting: AsyncExitStack) -> None:
        services = self.services
        services.started_ms = self.clock.now_ms()
        await self._listen(services, sockets, starting)
        self._start_registration(services, starting)
        await self._start_operations(services, starting)

    async def _open_store(self, starting: AsyncExitStack) -> BrokerServices:
        settings, config = self.settings, self.loaded.config
        host = encode_host(strip_brackets(settings.broker_ip1), settings.listen_port)
        store = cast(HostedStore, registry.message_store(self.loaded, self.clock, store_host=host))
        abort_file = Path(config.store_path_root_dir, ABORT_FILE)
        was_clean = not await asyncio.to_thread(abort_file.exists)
        begin = time.monotonic()
        loading = asyncio.create_task(asyncio.to_thread(store.load))
        try:
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            # The thread continues, and the store that it opens is closed.
            await asyncio.wait({loading})
            if loading.exception() is None:
                await self._shut_down(store)
            raise
        starting.push_async_callback(self._shut_down, store)
        seconds = time.monotonic() - begin
        tier = await asyncio.to_thread(find_tier, store)
        for line in list_start_lines(store, tier, was_clean=was_clean, recovery_seconds=seconds):
            _log.info("%s", line)
        await asyncio.to_thread(store.start)
        services = BrokerServices(
            settings=settings,
            store=store,
            store_config=config,
            store_host=host,
            clock=self.clock,
            is_read_only=config.broker_role == "SLAVE",
            address=join_address(settings.broker_ip1, settings.listen_port),
        )
        starting.push_async_callback(self._stop_look_ups, services.look_ups)
        return services

    async def _load_config(self, services: BrokerServices, starting: AsyncExitStack) -> None:
        folder, settings = services.config_folder, self.settings
        await asyncio.to_thread(check_format, folder)
        persisting = PersistService(lambda: settings.flush_consumer_offset_interval_ms)
        services.persisting = persisting
        has_lmq = services.store_config.enable_lmq
        services.topics = TopicConfigManager(folder, settings, self.clock, has_lmq=has_lmq)
        services.groups = SubscriptionGroupManager(folder, settings, self.clock, has_lmq=has_lmq)
        services.offsets = ConsumerOffsetManager(folder, self.clock, has_lmq=has_lmq)
        services.key_values = KeyValueManager(folder, self.clock)
        persisting.register(services.key_values, at_once=True)
        persisting.register(services.topics, at_once=True)
        persisting.register(services.groups, at_once=True)
        persisting.register(services.offsets)
        services.request_modes = RequestModeManager(folder, self.clock)
        persisting.register(services.request_modes, at_once=True)
        users, acls = UserManager(folder, self.clock), AclManager(folder, self.clock)
        persisting.register(users, at_once=True)
        persisting.register(acls, at_once=True)
        await persisting.load()
        services.access = AccessControl(settings, users, acls)
        await services.access.load()
        if not services.is_read_only:
            services.offsets.lower_to_ends(partial(find_next_offset, services.store))
        services.topics.add_system_topics()
        untyped = services.topics.list_untyped() if settings.enable_topic_message_type_check else []
        if untyped:
            _log.info(
                "over gRPC, %d topics take normal messages only, because they have no "
                "message.type: %s. `mqadmin updateTopic -a +message.type=MIXED` lets a topic take "
                "all types, and enableTopicMessageTypeCheck=false lets all",
                len(untyped),
                ", ".join(untyped[:_NAMED_TOPICS]) + (", …" if untyped[_NAMED_TOPICS:] else ""),
            )
        if services.is_read_only:
            TierHistory(services, None).update_topics()

        def forget_deleted(topic: str) -> None:
            if services.topics.find_topic(topic) is None:
                services.request_modes.remove_topic(topic)
                services.metrics.forget(lambda label: label == topic)

        services.topics.add_listener(forget_deleted)
        services.groups.add_system_groups()
        services.route = RouteTable(
            settings,
            services.topics,
            services.groups,
            lambda: services.address,
            is_read_only=services.is_read_only,
            clock=self.clock,
        )
        queues = RoutedQueues(settings, services.topics, services.route, self.clock)
        services.topic_queues = queues
        starting.push_async_callback(queues.close)
        persisting.start()
        starting.push_async_callback(persisting.stop)
        self._health_of.append(lambda: [persisting.health()])

    def _follow_history(self, services: BrokerServices, starting: AsyncExitStack) -> None:
        if self._follow_tier is not None:
            history = TierHistory(services, self._follow_tier)
            self._start_periodic(
                "TierFollower",
                lambda: self.settings.read_only_refresh_interval_ms,
                history.follow,
                starting,
                max_doublings=1,
            )

    def _make_clients(self, services: BrokerServices, starting: AsyncExitStack) -> None:
        services.producers = ProducerManager(self.clock)
        services.consumers = ConsumerManager(self.clock)
        services.locks = RebalanceLocks(self.clock)
        services.hold = PullHold()
        services.puller = MessagePuller(services.store, services.hold, self.clock, services.traffic)
        services.hold.start()
        starting.callback(services.hold.stop)
        services.store.set_message_arriving_listener(services.hold.notify_arrived)
        starting.callback(services.store.set_message_arriving_listener, None)
        self._start_periodic("ClientHousekeeping", SILENCE_CHECK_MS, self.remove_silent, starting)

    async def _start_delays(self, services: BrokerServices, starting: AsyncExitStack) -> None:
        delays_ms = parse_delay_levels(self.settings.message_delay_level)
        door = services.door = Door(self.settings)
        is_open, find_queue = partial(door.is_open, is_reply=True), services.topics.find_queue
        hook = DelayHook(delays_ms, self.clock, is_open, find_queue)
        services.store.add_put_message_hook(PutGuard(door))
        hook.install(services.store)
        store, folder, skipped = services.store, services.config_folder, services.skipped
        services.schedule = ScheduleMessageService(
            store, hook, delays_ms, folder, self.clock, skipped
        )
        services.timers = TimerMessageService(store, hook, folder, self.clock, skipped)
        for manager in (services.schedule.offsets, services.timers.progress):
            await manager.load()
            services.persisting.register(manager)
        if services.is_read_only:
            return
        for service in (services.schedule, services.timers):
            service.start()
            starting.push_async_callback(service.stop)
        self._health_of.append(lambda: [services.schedule.health(), services.timers.health()])

    def _make_senders(self, services: BrokerServices) -> None:
        store, settings, topics, groups = (
            services.store,
            self.settings,
            services.topics,
            services.groups,
        )
        is_read_only = services.is_read_only
        services.sender = MessageSender(
            store,
            settings,
            topics,
            groups,
            services.store_host,
            locks=services.locks,
            is_read_only=is_read_only,
            door=services.door,
            fills_light_queues=lambda: services.store_config.fills_light_queues,
            light_quota=LightQuota(store, services.store_config, services.clock),
            traffic=services.traffic,
        )
        services.send_back = SendBack(
            store, settings, topics, groups, is_read_only=is_read_only, traffic=services.traffic
        )

    async def _start_transactions(self, services: BrokerServices, starting: AsyncExitStack) -> None:
        transactions = services.transactions = TransactionService(
            services.store,
            self.settings,
            services.sender,
            services.offsets,
            services.producers,
            self.clock,
            lambda: services.store_config.local_file_reserved_time_hours * 3_600_000,
            services.skipped,
        )
        if services.is_read_only:
            return
        await transactions.load()
        transactions.start()
        starting.push_async_callback(transactions.stop)
        self._health_of.append(transactions.health)

    async def _start_receiving(self, services: BrokerServices, starting: AsyncExitStack) -> None:
        consumers = services.consumers

        def is_live(group: str, client_id: str) -> bool:
            found = consumers.find_group(group)
            return found is not None and found.find_client(client_id) is not None

        settings = self.settings
        subscriptions = services.subscriptions = LiteSubscriptions(
            settings, services.groups, self.clock
        )
        source = services.store.dispatch_source
        expiry = services.lite_expiry = LiteExpiry(
            *(services.store, settings, services.topics, services.offsets, subscriptions),
            services.look_ups,
            getattr(source, "retention_clock", RetentionClock(self.clock)),
        )
        is_synced = services.store_config.flush_disk_type == "SYNC_FLUSH"
        state = ReceiveState(
            ReceiveJournal(services.config_folder / "receive", is_synced=is_synced),
            services.store,
            services.topics,
            services.groups,
            services.offsets,
            self.clock,
            lambda: services.settings.init_pop_offset_by_check_msg_in_mem,
        )
        receive = services.receive = ReceiveService(
            state,
            services.hold,
            services.send_back,
            is_live,
            services.traffic,
            lambda: services.settings.priority_order_asc,
            subscriptions,
        )
        await receive.start()
        starting.push_async_callback(receive.stop)
        if not services.is_read_only:
            interval = lambda: settings.lite_ttl_check_interval_ms  # noqa: E731
            self._start_periodic("LiteExpiry", interval, expiry.expire, starting)
        self._start_periodic(
            "LiteSubscriptions",
            lambda: settings.lite_subscription_check_interval_ms,
            subscriptions.end_silent,
            starting,
        )
        services.looks = ReceiveLooks(services.store, receive.state, services.hold, self.clock)
        self._health_of.append(receive.health)

    async def _start_statistics(self, services: BrokerServices, starting: AsyncExitStack) -> None:
        statistics = services.statistics = BrokerStatistics(
            services.store,
            services.topics,
            services.traffic,
            self.settings.broker_cluster_name,
            self.clock,
        )
        statistics.sources["timerDequeue"] = lambda: services.timers.delivered
        await statistics.sample()
        self._start_periodic("BrokerStatistics", SAMPLE_INTERVAL_MS, statistics.sample, starting)

    def _start_periodic(
        self,
        name: str,
        interval_ms: int | Callable[[], int],
        run: Callable[[], Awaitable[object]],
        starting: AsyncExitStack,
        max_doublings: int = MAX_DOUBLINGS,
    ) -> None:
        task = PeriodicTask(name, interval_ms, run, max_doublings)
        task.start()
        starting.push_async_callback(task.stop)
        self._health_of.append(lambda: [task.health()])

    async def remove_silent(self) -> None:
        """Remove clients and brokers whose heartbeats stopped, and expired queue locks."""
        self.services.producers.remove_silent()
        self.services.consumers.remove_silent()
        self.services.route.others.remove_silent()
        self.services.locks.remove_expired()

    async def _listen(
        self, services: BrokerServices, sockets: Sockets, starting: AsyncExitStack
    ) -> None:
        settings = self.settings
        tls = await asyncio.to_thread(load_tls, settings)
        context = await asyncio.to_thread(make_server_context, tls)
        guard = RemotingGuard(services.access) if services.access.is_enabled else None
        table = make_handler_table(services, guard)
        await self._serve_remoting(table, sockets.remoting, context, starting)
        if sockets.fast is not None:
            fast = table.without(NOT_ON_FAST_PORT)
            await self._serve_remoting(fast, sockets.fast, context, starting)
        self.addresses["remoting"] = self.addresses["namesrv"] = services.address
        if sockets.namesrv is not None:
            await self._serve_remoting(table, sockets.namesrv, context, starting)
            self.addresses["namesrv"] = join_address(
                settings.broker_ip1, settings.namesrv_listen_port
            )
        grpc_server = GrpcServer(
            Service(services, access=services.access if services.access.is_enabled else None), tls
        )
        await grpc_server.start(sockets.grpc)
        starting.push_async_callback(grpc_server.stop)
        self.addresses["grpc"] = services.grpc_address

    async def _serve_remoting(
        self,
        table: HandlerTable,
        listening: socket.socket,
        tls: ssl.SSLContext,
        starting: AsyncExitStack,
    ) -> None:
        mode = TlsMode(self.settings.tls_server_mode)
        server = RemotingServer(table, self.limits, tls=tls, tls_mode=mode)
        server.add_close_listener(self.services.producers.remove_session)
        server.add_close_listener(self.services.consumers.remove_session)
        server.add_close_listener(self.services.route.others.remove_session)
        await server.start(listening)
        starting.push_async_callback(server.stop)

    def _start_registration(self, services: BrokerServices, starting: AsyncExitStack) -> None:
        registration = NameServerRegistration(self.settings, services.topics, services.route)
        registration.start()
        starting.push_async_callback(registration.stop)
        self._health_of.append(lambda: [registration.health()])

    async def _start_operations(self, services: BrokerServices, starting: AsyncExitStack) -> None:
        settings = self.settings
        if settings.metrics_exporter_type == "DISABLE":
            return
        operations = Operations(services, self.health)
        host = strip_brackets(settings.metrics_prom_exporter_host or settings.bind_address)
        port = await operations.start(host, settings.metrics_prom_exporter_port)
        starting.push_async_callback(operations.stop)
        self.addresses["metrics"] = join_address(settings.broker_ip1, port)
        if settings.metrics_exporter_type == "OTLP_GRPC":
            otlp = await asyncio.to_thread(OtlpExporter, settings)
            starting.push_async_callback(asyncio.to_thread, otlp.close)
            interval_ms = settings.metric_grpc_exporter_interval_ms
            self._start_periodic(
                "OtlpExporter", interval_ms, lambda: operations.send_metrics(otlp), starting
            )

    async def stop(self) -> None:
        """Stop all parts in reverse order. Acknowledged messages are not lost. Idempotent."""
        running, self._running = self._running, AsyncExitStack()
        await running.aclose()

    async def _stop_look_ups(self, look_ups: LookUps) -> None:
        if not await asyncio.to_thread(look_ups.stop):
            self.is_abandoned = True
            _log.warning(
                "look-ups have not ended, perhaps for a tier without an answer: the process exits "
                "without them"
            )

    async def _shut_down(self, store: HostedStore) -> None:
        """Shut down the store. If the tier does not respond, flush the store and leave the rest to
        the recovery of the next start. No messages are lost."""
        ending = asyncio.ensure_future(asyncio.to_thread(store.shutdown))
        done, _ = await asyncio.wait({ending}, timeout=STORE_STOP_S)
        if done:
            await ending
            return
        self.is_abandoned = True
        _log.warning(
            "the store has not stopped in %d s, perhaps for its tier: it is flushed, and "
            "recovers at its next start",
            STORE_STOP_S,
        )
        *_, local = list_layers(store)
        if isinstance(local, FlushedStore):
            await asyncio.wait({asyncio.ensure_future(asyncio.to_thread(local.flush))}, timeout=5)

    def health(self) -> list[ServiceHealth]:
        """Return the health of each background loop of the broker and its store."""
        own = [health for find in self._health_of for health in find()]
        store = self.services.store
        return [*own, *(store.health() if isinstance(store, MonitoredServices) else ())]
