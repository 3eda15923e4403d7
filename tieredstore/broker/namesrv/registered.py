"""RegisteredBrokers: other brokers registered with this name server."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from tieredstore.broker.clients.session import ClientSession
from tieredstore.broker.hosts import HostShares, name_host
from tieredstore.broker.state.config_manager import DataVersion
from tieredstore.broker.state.topics import PERM_READ, PERM_WRITE, TopicConfig
from tieredstore.clock import Clock
from tieredstore.errors import Invalid

MASTER_ID: Final = 0
MAX_BROKERS: Final = 1_000
"""Maximum number of registered broker addresses, because any peer that reaches the port may
register."""
SILENCE_MS: Final = 120_000
"""Default time (ms) without heartbeats after which a broker is removed."""
_log = logging.getLogger(__name__)


class QueueData(msgspec.Struct, rename="camel"):
    """Queues of a topic on one broker."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


class Registration(msgspec.Struct, kw_only=True):
    """Registration of a broker. `enable_acting_master`: None if not sent. `topics`: the broker's
    topic table. `version`: version of that table."""

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
    """Master and slaves that share a broker name."""

    cluster: str
    enable_acting_master: bool = False
    addresses: dict[int, str] = {}
    live: dict[str, _Live] = {}
    queues: dict[str, QueueData] = {}


class RegisteredBrokers:
    """Registered brokers by name. A broker is removed when it unregisters, disconnects, or stops
    sending heartbeats. A topic is removed with its broker or by `delete_topic`. As in Java's name
    server, a topic is not removed when a broker registers a table without it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._brokers: dict[str, _Broker] = {}

    # --- calls of brokers -----------------------------------------------------------------------

    def register(self, new: Registration, session: ClientSession) -> tuple[str, str]:
        """Register or update a broker. For a slave, returns the address and replication address of
        its master. Both are empty for a master. Raises Invalid if a new address would exceed the
        limit, in total (MAX_BROKERS) or for its host."""
        broker = self._brokers.get(new.name)
        is_new = broker is None or new.address not in broker.live
        shares = HostShares(MAX_BROKERS)
        for found in self._brokers.values() if is_new else ():
            for live in found.live.values():
                shares.add(name_host(live.session.address))
        if not shares.has_room(name_host(session.address)):
            raise Invalid(f"broker {new.name}: {shares.total} brokers, no further one of this host")
        if broker is None:
            broker = self._brokers[new.name] = _Broker(new.cluster)
        broker.enable_acting_master = bool(new.enable_acting_master)
        for broker_id, address in list(broker.addresses.items()):
            if address == new.address and broker_id != new.broker_id:  # a slave became master
                del broker.addresses[broker_id]
        known = broker.live.get(broker.addresses.get(new.broker_id, ""))
        if known is not None and broker.addresses[new.broker_id] != new.address:
            if known.version.state_version > new.version.state_version:
                _log.warning(
                    "broker %s %d: %s stays at %s, which is newer",
                    new.name, new.broker_id, new.address, broker.addresses[new.broker_id],
                )  # fmt: skip
                broker.live.pop(new.address, None)
                return "", ""
            del broker.live[broker.addresses[new.broker_id]]
        broker.addresses[new.broker_id] = new.address
        if new.broker_id == MASTER_ID or (
            new.enable_acting_master is not None and new.broker_id == min(broker.addresses)
        ):
            self._take_topics(broker, new)
        broker.live[new.address] = _Live(
            self._clock.now_ms(), new.silence_ms, new.version, new.ha_address, session
        )
        if is_new:
            _log.info("broker %s %d at %s has registered", new.name, new.broker_id, new.address)
        master = broker.addresses.get(MASTER_ID, "")
        if new.broker_id == MASTER_ID or master not in broker.live:
            return "", ""
        return master, broker.live[master].ha_address

    def _take_topics(self, broker: _Broker, new: Registration) -> None:
        known = broker.live.get(new.address)
        is_changed = known is None or known.version != new.version
        for topic, config in new.topics.items():
            if not is_changed and topic in broker.queues:
                continue  # its permission may have been wiped since
            perm = config.perm
            if new.broker_id != MASTER_ID and broker.enable_acting_master:
                perm &= ~PERM_WRITE
            broker.queues[topic] = QueueData(
                new.name, config.read_queue_nums, config.write_queue_nums, perm,
                config.topic_sys_flag,
            )  # fmt: skip

    def unregister(self, name: str, address: str) -> None:
        """Remove a broker address. Removing the last address of a name also removes its topics."""
        broker = self._brokers.get(name)
        if broker is None:
            return
        was_live = broker.live.pop(address, None) is not None
        if not was_live and address not in broker.addresses.values():
            return
        broker.addresses = {k: found for k, found in broker.addresses.items() if found != address}
        if not broker.addresses:
            del self._brokers[name]
        elif MASTER_ID not in broker.addresses and broker.enable_acting_master:
            for queues in broker.queues.values():
                queues.perm &= ~PERM_WRITE
        _log.info("broker %s at %s has gone", name, address)

    def note_heard(self, name: str, address: str) -> None:
        live = self._find_live(name, address)
        if live is not None:
            live.last_ms = self._clock.now_ms()

    def find_version(self, name: str, address: str) -> DataVersion | None:
        """Return the registered version of a broker's topic table, or None for an unknown
        broker."""
        live = self._find_live(name, address)
        return None if live is None else live.version

    def _find_live(self, name: str, address: str) -> _Live | None:
        broker = self._brokers.get(name)
        return None if broker is None else broker.live.get(address)

    def remove_session(self, session: ClientSession) -> None:
        """Remove the brokers registered over a closed connection."""
        self._remove(
            [
                (name, address)
                for name, broker in self._brokers.items()
                for address, live in broker.live.items()
                if live.session is session
            ]
        )

    def remove_silent(self) -> None:
        """Remove the brokers whose heartbeats stopped."""
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

    # --- calls of operators ---------------------------------------------------------------------

    def put_queues(self, topic: str, queues: QueueData) -> None:
        self._brokers[queues.broker_name].queues[topic] = queues

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        for broker in self._brokers.values():
            if cluster in {"", broker.cluster}:
                broker.queues.pop(topic, None)

    def set_writable(self, name: str, *, is_writable: bool) -> int:
        """Set or clear the write permission on a broker's topics. Returns how many topics it
        has."""
        broker = self._brokers.get(name)
        for queues in () if broker is None else broker.queues.values():
            queues.perm = PERM_READ | PERM_WRITE if is_writable else queues.perm & ~PERM_WRITE
        return 0 if broker is None else len(broker.queues)

    # --- calls of clients -----------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        return name in self._brokers

    def list_brokers(self) -> Iterator[dict[str, object]]:
        for name in sorted(self._brokers):
            yield self.describe(name)

    def describe(self, name: str) -> dict[str, object]:
        broker = self._brokers[name]
        return {
            "brokerAddrs": {str(key): broker.addresses[key] for key in sorted(broker.addresses)},
            "brokerName": name,
            "cluster": broker.cluster,
            "enableActingMaster": broker.enable_acting_master,
        }

    def find_queues(self, topic: str) -> list[QueueData]:
        found = (broker.queues.get(topic) for _, broker in sorted(self._brokers.items()))
        return [queues for queues in found if queues is not None]

    def list_topics(self, cluster: str | None = None) -> dict[str, int]:
        """Return the topics of a cluster, or of all clusters, with their system flags."""
        return {
            topic: queues.topic_sys_flag
            for broker in self._brokers.values()
            if cluster in {None, broker.cluster}
            for topic, queues in broker.queues.items()
        }
