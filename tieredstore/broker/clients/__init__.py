"""Who is connected: producers, consumers by group, locks of orderly consumers."""

from tieredstore.broker.clients.consumers import (
    Consumer,
    ConsumerGroup,
    ConsumerManager,
    ConsumerSettings,
)
from tieredstore.broker.clients.locks import RebalanceLocks
from tieredstore.broker.clients.producers import ProducerManager
from tieredstore.broker.clients.session import (
    SILENCE_LIMIT_MS,
    ClientReply,
    ClientSession,
    TelemetryClient,
    VerifyResult,
)
from tieredstore.broker.clients.subscription import SQL92, TAG, Subscription

__all__ = [
    "SILENCE_LIMIT_MS",
    "SQL92",
    "TAG",
    "ClientReply",
    "ClientSession",
    "Consumer",
    "ConsumerGroup",
    "ConsumerManager",
    "ConsumerSettings",
    "ProducerManager",
    "RebalanceLocks",
    "Subscription",
    "TelemetryClient",
    "VerifyResult",
]
