"""BrokerServices: the parts of a broker that handlers and the gRPC service use."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tieredstore.broker.auth.access import AccessControl
from tieredstore.broker.background import LookUps
from tieredstore.broker.clients.assignment import TopicQueues
from tieredstore.broker.clients.consumers import ConsumerManager, ProducerManager, RebalanceLocks
from tieredstore.broker.delay.schedule import ScheduleMessageService
from tieredstore.broker.delay.timers import TimerMessageService
from tieredstore.broker.lite.expiry import LiteExpiry
from tieredstore.broker.lite.subscriptions import LiteSubscriptions
from tieredstore.broker.namesrv.route import KeyValueManager, RouteTable
from tieredstore.broker.pull import MessagePuller, PullHold
from tieredstore.broker.receive.looks import ReceiveLooks
from tieredstore.broker.receive.service import ReceiveService
from tieredstore.broker.send.door import Door
from tieredstore.broker.send.send_back import SendBack
from tieredstore.broker.send.sender import MessageSender
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.config_manager import PersistService
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.request_modes import RequestModeManager
from tieredstore.broker.state.statistics import BrokerStatistics
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.broker.state.traffic import TrafficCounts
from tieredstore.broker.transactions.service import TransactionService
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig, require_root
from tieredstore.contracts.message_store import HostedStore
from tieredstore.message.hosts import LOCALHOST
from tieredstore.metrics import Metrics
from tieredstore.skipped_records import SkippedRecords


@dataclass(slots=True, kw_only=True)
class BrokerServices:
    """Parts of a broker, for its event loop only. `Broker` creates them in order, each from earlier
    ones. Reading a part that does not exist yet raises AttributeError. `is_read_only`: True if the
    store refuses all messages. Sends, send-backs and dead letters are then answered with
    NO_PERMISSION. `address`: `ip:port` for remoting clients, as in routes. `grpc_address`: the same
    for gRPC, empty without gRPC. `started_ms`: time when the broker started serving, epoch ms."""

    settings: BrokerSettings
    store: HostedStore
    store_config: StoreConfig = field(default_factory=StoreConfig)
    store_host: bytes = LOCALHOST
    clock: Clock = SYSTEM_CLOCK
    metrics: Metrics = field(default_factory=Metrics)
    look_ups: LookUps = field(default_factory=LookUps)
    skipped: SkippedRecords = field(default_factory=SkippedRecords)
    is_read_only: bool = False
    address: str = ""
    grpc_address: str = ""
    started_ms: int = 0

    traffic: TrafficCounts = field(init=False)
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
    door: Door = field(init=False)
    sender: MessageSender = field(init=False)
    send_back: SendBack = field(init=False)
    schedule: ScheduleMessageService = field(init=False)
    timers: TimerMessageService = field(init=False)
    transactions: TransactionService = field(init=False)
    subscriptions: LiteSubscriptions = field(init=False)
    lite_expiry: LiteExpiry = field(init=False)
    receive: ReceiveService = field(init=False)
    looks: ReceiveLooks = field(init=False)
    request_modes: RequestModeManager = field(init=False)
    route: RouteTable = field(init=False)
    topic_queues: TopicQueues = field(init=False)
    key_values: KeyValueManager = field(init=False)
    access: AccessControl = field(init=False)

    def __post_init__(self) -> None:
        self.traffic = TrafficCounts(self.metrics)

    @property
    def config_folder(self) -> Path:
        return require_root(self.store_config) / "config"
