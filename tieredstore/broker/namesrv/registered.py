"""RegisteredBrokers: other brokers that have told this name server where they are."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from tieredstore.broker.clients.session import ClientSession
from tieredstore.broker.state.config_manager import DataVersion
from tieredstore.broker.state.topics import PERM_READ, PERM_WRITE, TopicConfig
from tieredstore.clock import Clock
from tieredstore.errors import Invalid

MASTER_ID: Final = 0
MAX_BROKERS: Final = 1_000
"""Addresses that are kept: whoever reaches the port may register some."""
SILENCE_MS: Final = 120_000
"""How long a broker may say nothing, when it does not tell otherwise."""
_log = logging.getLogger(__name__)


class QueueData(msgspec.Struct, rename="camel"):
    """The queues of a topic in one broker."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class Registration(msgspec.Struct, kw_only=True):
    """What a broker says of itself. enable_acting_master: None of a broker that knows nothing of
    it. topics: those of its table, which is of `version`."""

    cluster: str
    name: str
    address: str
    broker_id: int
    ha_address: str = ""
    enable_acting_master: bool | None = None
    silence_ms: int = SILENCE_MS
    version: DataVersion
    topics: Mapping[str, TopicConfig]


class _Live(msgspec.Struct):
    last_ms: int
    silence_ms: int
    version: DataVersion
    ha_address: str
    session: ClientSession


class _Broker(msgspec.Struct):
    """A master and its slaves, which have one name."""

    cluster: str
    enable_acting_master: bool = False
    addresses: dict[int, str] = {}
    live: dict[str, _Live] = {}
    queues: dict[str, QueueData] = {}


class RegisteredBrokers:
    """Brokers by name, until they say goodbye, their connection ends, or they are silent for long.

    Each topic of a broker stays until the broker goes or `delete_topic`: as with Java's name
    server, a table in which it is missing does not delete it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._brokers: dict[str, _Broker] = {}

    # --- what brokers say -----------------------------------------------------------------------

    def register(self, said: Registration, session: ClientSession) -> tuple[str, str]:
        """Take a broker in, or what it says anew; returns the address of its master and that of
        its master's replication, empty for a master. Raises Invalid for one too many."""
        broker = self._brokers.get(said.name)
        is_new = broker is None or said.address not in broker.live
        if is_new and sum(len(found.live) for found in self._brokers.values()) >= MAX_BROKERS:
            raise Invalid(f"broker {said.name}: expected at most {MAX_BROKERS} brokers, found more")
        if broker is None:
            broker = self._brokers[said.name] = _Broker(said.cluster)
        broker.enable_acting_master = bool(said.enable_acting_master)
        for broker_id, address in list(broker.addresses.items()):
            if address == said.address and broker_id != said.broker_id:  # a slave became master
                del broker.addresses[broker_id]
        known = broker.live.get(broker.addresses.get(said.broker_id, ""))
        if known is not None and broker.addresses[said.broker_id] != said.address:
            if known.version.state_version > said.version.state_version:
                _log.warning(
                    "broker %s %d: %s stays at %s, which is newer",
                    said.name, said.broker_id, said.address, broker.addresses[said.broker_id],
                )  # fmt: skip
                broker.live.pop(said.address, None)
                return "", ""
            del broker.live[broker.addresses[said.broker_id]]
        broker.addresses[said.broker_id] = said.address
        if said.broker_id == MASTER_ID or (
            said.enable_acting_master is not None and said.broker_id == min(broker.addresses)
        ):
            self._take_topics(broker, said)
        broker.live[said.address] = _Live(
            self._clock.now_ms(), said.silence_ms, said.version, said.ha_address, session
        )
        if is_new:
            _log.info("broker %s %d at %s has registered", said.name, said.broker_id, said.address)
        master = broker.addresses.get(MASTER_ID, "")
        if said.broker_id == MASTER_ID or master not in broker.live:
            return "", ""
        return master, broker.live[master].ha_address

    def _take_topics(self, broker: _Broker, said: Registration) -> None:
        known = broker.live.get(said.address)
        is_changed = known is None or known.version != said.version
        for topic, config in said.topics.items():
            if not is_changed and topic in broker.queues:
                continue  # its permission may have been wiped meanwhile
            perm = config.perm
            if said.broker_id != MASTER_ID and broker.enable_acting_master:
                perm &= ~PERM_WRITE
            broker.queues[topic] = QueueData(
                said.name, config.read_queue_nums, config.write_queue_nums, perm,
                config.topic_sys_flag,
            )  # fmt: skip

    def unregister(self, name: str, address: str) -> None:
        """Forget a broker, and its topics with the last address of its name."""
        broker = self._brokers.get(name)
        if broker is None:
            return
        broker.live.pop(address, None)
        broker.addresses = {k: found for k, found in broker.addresses.items() if found != address}
        if not broker.addresses:
            del self._brokers[name]
        elif MASTER_ID not in broker.addresses and broker.enable_acting_master:
            for queues in broker.queues.values():
                queues.perm &= ~PERM_WRITE
        _log.info("broker %s at %s has gone", name, address)

    def note_heard(self, name: str, address: str) -> None:
        """Note that a broker is there."""
        live = self._find_live(name, address)
        if live is not None:
            live.last_ms = self._clock.now_ms()

    def find_version(self, name: str, address: str) -> DataVersion | None:
        """Return of which version the table is that a broker has told."""
        live = self._find_live(name, address)
        return None if live is None else live.version

    def _find_live(self, name: str, address: str) -> _Live | None:
        broker = self._brokers.get(name)
        return None if broker is None else broker.live.get(address)

    def remove_session(self, session: ClientSession) -> None:
        """Forget the brokers of a connection that has ended."""
        self._remove(
            [
                (name, address)
                for name, broker in self._brokers.items()
                for address, live in broker.live.items()
                if live.session is session
            ]
        )

    def remove_silent(self) -> None:
        """Forget brokers of which nothing was heard for long."""
        now_ms = self._clock.now_ms()
        self._remove(
            [
                (name, address)
                for name, broker in self._brokers.items()
                for address, live in broker.live.items()
                if now_ms - live.last_ms > live.silence_ms
            ]
        )

    def _remove(self, gone: list[tuple[str, str]]) -> None:
        for name, address in gone:
            self.unregister(name, address)

    # --- what operators change ------------------------------------------------------------------

    def put_queues(self, topic: str, queues: QueueData) -> None:
        """Set the queues of one topic in a broker, which is known."""
        self._brokers[queues.broker_name].queues[topic] = queues

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Forget a topic, in one cluster or in all."""
        for broker in self._brokers.values():
            if cluster in {"", broker.cluster}:
                broker.queues.pop(topic, None)

    def set_writable(self, name: str, *, is_writable: bool) -> int:
        """Let nobody write to a broker's topics, or everybody; returns how many it has."""
        broker = self._brokers.get(name)
        for queues in () if broker is None else broker.queues.values():
            queues.perm = PERM_READ | PERM_WRITE if is_writable else queues.perm & ~PERM_WRITE
        return 0 if broker is None else len(broker.queues)

    # --- what clients ask -----------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        return name in self._brokers

    def list_brokers(self) -> Iterator[dict[str, object]]:
        """List each broker as its BrokerData."""
        for name in sorted(self._brokers):
            yield self.describe(name)

    def describe(self, name: str) -> dict[str, object]:
        """Return a broker, which is known, as its BrokerData."""
        broker = self._brokers[name]
        return {
            "brokerAddrs": {str(key): broker.addresses[key] for key in sorted(broker.addresses)},
            "brokerName": name,
            "cluster": broker.cluster,
            "enableActingMaster": broker.enable_acting_master,
        }

    def find_queues(self, topic: str) -> list[QueueData]:
        """Return the queues of a topic in each broker that has some."""
        found = (broker.queues.get(topic) for _, broker in sorted(self._brokers.items()))
        return [queues for queues in found if queues is not None]

    def list_topics(self, cluster: str | None = None) -> dict[str, int]:
        """List the topics of a cluster, or of all, with their system flags."""
        return {
            topic: queues.topic_sys_flag
            for broker in self._brokers.values()
            if cluster in {None, broker.cluster}
            for topic, queues in broker.queues.items()
        }
