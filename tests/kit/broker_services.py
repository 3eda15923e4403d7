"""The parts of a broker on a real local store, and a remoting server for some of its handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.kit.local_stores import running, small_config
from tests.kit.receiving import KeptDeadLetters
from tests.kit.remoting import RemotingClient, serve
from tieredstore.broker.clients.consumers import ConsumerManager, ProducerManager, RebalanceLocks
from tieredstore.broker.delay.hook import DelayHook
from tieredstore.broker.delay.schedule import ScheduleMessageService
from tieredstore.broker.delay.timers import TimerMessageService
from tieredstore.broker.pull import PullHold
from tieredstore.broker.receive.journal import ReceiveJournal
from tieredstore.broker.receive.service import ReceiveService
from tieredstore.broker.receive.state import ReceiveState
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.request_modes import RequestModeManager
from tieredstore.broker.state.statistics import BrokerStatistics
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.clock import ManualClock

DELAYS_MS = (1000, 5000)
"""Times of the services' delay levels, in ms."""


@asynccontextmanager
async def broker_services(
    root: Path, *, store_settings: Mapping[str, object] | None = None, **changes: object
) -> AsyncIterator[BrokerServices]:
    """Yield the services of a broker over a store of small files. `changes` override fields of
    `BrokerServices`."""
    clock = ManualClock()
    settings = BrokerSettings(
        broker_name="broker-a", broker_cluster_name="cluster", broker_ip1="127.0.0.1"
    )
    config = small_config(root, broker_name="broker-a", **(store_settings or {}))
    with running(config, clock) as store:
        broker = BrokerServices(settings=settings, store=store, store_config=config, clock=clock)
        for name, value in changes.items():
            setattr(broker, name, value)
        folder = root / "config"
        broker.topics = TopicConfigManager(folder, settings, clock)
        broker.groups = SubscriptionGroupManager(folder, settings, clock)
        broker.offsets = ConsumerOffsetManager(folder, clock)
        broker.topics.add_system_topics()
        broker.groups.add_system_groups()
        broker.producers = ProducerManager(clock)
        broker.consumers = ConsumerManager(clock)
        broker.locks = RebalanceLocks(clock)
        broker.request_modes = RequestModeManager(folder, clock)
        broker.hold = PullHold()
        journal = ReceiveJournal(folder / "receive", is_synced=False)
        broker.receive = ReceiveService(
            ReceiveState(journal, store, broker.topics, broker.groups, broker.offsets, clock),
            broker.hold,
            KeptDeadLetters(),
            lambda *_: False,
            broker.traffic,
        )
        hook = DelayHook(DELAYS_MS, clock)
        broker.schedule = ScheduleMessageService(store, hook, DELAYS_MS, folder, clock)
        broker.timers = TimerMessageService(store, hook, folder, clock)
        broker.statistics = BrokerStatistics(
            store, broker.topics, broker.traffic, settings.broker_cluster_name, clock
        )
        await broker.statistics.sample()
        yield broker


@asynccontextmanager
async def client_of(
    broker: BrokerServices, *register: Callable[[HandlerTable, BrokerServices], None]
) -> AsyncIterator[RemotingClient]:
    """Yield a client that is connected to a remoting server with the given handlers."""
    table = HandlerTable()
    for register_handlers in register:
        register_handlers(table, broker)
    async with serve(table) as (_, address), await RemotingClient.open(address) as client:
        yield client
