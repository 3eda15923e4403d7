"""BrokerServices: what handlers and the gRPC service are given of a broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tieredstore.broker.auth.access import AccessControl
from tieredstore.broker.clients import ConsumerManager, ProducerManager, RebalanceLocks
from tieredstore.broker.delay.schedule import ScheduleMessageService
from tieredstore.broker.delay.timers import TimerMessageService
from tieredstore.broker.look_ups import LookUps
from tieredstore.broker.namesrv.key_values import KeyValueManager
from tieredstore.broker.namesrv.route import RouteTable
from tieredstore.broker.pull.hold import PullHold
from tieredstore.broker.pull.puller import MessagePuller
from tieredstore.broker.receive import ReceiveService
from tieredstore.broker.send.send_back import SendBack
from tieredstore.broker.send.sender import MessageSender
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.persisting import PersistService
from tieredstore.broker.state.statistics import BrokerStatistics
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.broker.transactions.service import TransactionService
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.message_store import HostedStore
from tieredstore.message.hosts import LOCALHOST
from tieredstore.metrics import Metrics


@dataclass(slots=True, kw_only=True)
class BrokerServices:
    """The parts of one broker, all used on its loop only.

    `Broker` makes them one after the other, each from those before it; a part that is asked for
    before it is made raises AttributeError. is_read_only: whether the store takes no messages from
    anybody (sends, send-backs and dead letters are answered with NO_PERMISSION). address: `ip:port`
    where clients reach the remoting server, as routes name it; grpc_address: likewise of gRPC,
    empty without it. started_ms: since when it serves, epoch ms.
    """

    settings: BrokerSettings
    store: HostedStore
    store_config: StoreConfig = field(default_factory=StoreConfig)
    store_host: bytes = LOCALHOST
    clock: Clock = SYSTEM_CLOCK
    metrics: Metrics = field(default_factory=Metrics)
    look_ups: LookUps = field(default_factory=LookUps)
    is_read_only: bool = False
    address: str = ""
    grpc_address: str = ""
    started_ms: int = 0

    persisting: PersistService = field(init=False)
    topics: TopicConfigManager = field(init=False)
    groups: SubscriptionGroupManager = field(init=False)
    offsets: ConsumerOffsetManager = field(init=False)
    statistics: BrokerStatistics = field(init=False)
    producers: ProducerManager = field(init=False)
    consumers: ConsumerManager = field(init=False)
    locks: RebalanceLocks = field(init=False)
    hold: PullHold = field(init=False)
    puller: MessagePuller = field(init=False)
    sender: MessageSender = field(init=False)
    send_back: SendBack = field(init=False)
    schedule: ScheduleMessageService = field(init=False)
    timers: TimerMessageService = field(init=False)
    transactions: TransactionService = field(init=False)
    receive: ReceiveService = field(init=False)
    route: RouteTable = field(init=False)
    key_values: KeyValueManager = field(init=False)
    access: AccessControl = field(init=False)

    @property
    def config_folder(self) -> Path:
        """Where the files of `config/` are."""
        return Path(self.store_config.store_path_root_dir, "config")
