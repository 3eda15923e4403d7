"""BrokerServices: what handlers and the gRPC service are given of a broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.message_store import HostedStore
from tieredstore.metrics import Metrics


@dataclass(slots=True, kw_only=True)
class BrokerServices:
    """The parts of one broker, all used on its loop only.

    `Broker` makes them one after the other, each from those before it; a part that is asked for
    before it is made raises AttributeError. is_read_only: whether the store takes no messages from
    anybody (sends, send-backs and dead letters are answered with NO_PERMISSION). address: `ip:port`
    where clients reach the remoting server.
    """

    settings: Any
    store: HostedStore
    clock: Clock = SYSTEM_CLOCK
    metrics: Metrics = field(default_factory=Metrics)
    is_read_only: bool = False
    address: str = ""
    grpc_address: str = ""

    topics: Any = field(init=False)
    groups: Any = field(init=False)
    offsets: Any = field(init=False)
    producers: Any = field(init=False)
    consumers: Any = field(init=False)
    locks: Any = field(init=False)
    sender: Any = field(init=False)
    send_back: Any = field(init=False)
    puller: Any = field(init=False)
    hold: Any = field(init=False)
    schedule: Any = field(init=False)
    timers: Any = field(init=False)
    transactions: Any = field(init=False)
    receive: Any = field(init=False)
    route: Any = field(init=False)
