"""`TrafficCounts`: counts the messages that a broker delivers and that consumers send back, per
request as in Java's BrokerStatsManager. Puts are counted by the store (`CountedStore`)."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from tieredstore.message.names import LMQ_PREFIX
from tieredstore.metrics import Metrics

MESSAGES_OUT: Final = "rocketmq_messages_out_total"


class Deliveries(msgspec.Struct):
    """Deliveries to a group from a topic: number of messages, bytes of records, and number of
    responses with messages."""

    messages: int = 0
    size_bytes: int = 0
    answers: int = 0


def name_counted(name: str) -> str:
    """Return the name under which deliveries are counted. As in Java, all light queues are counted
    together, and so are their groups, because clients choose these names."""
    return LMQ_PREFIX if name.startswith(LMQ_PREFIX) else name


class TrafficCounts:
    """Counts of deliveries, send-backs and reads since the broker's start. Use only on the event
    loop. `deliveries`, `send_backs`: counts by topic and group. `batched`: messages in batches
    except the first of each batch, by topic. `found`, `missed`: reads with and without messages.
    `longest_read_ns`: duration of the longest read. `metrics`: registry that also counts delivered
    messages."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        self._metrics = metrics or Metrics()
        self.deliveries: dict[tuple[str, str], Deliveries] = {}
        self.send_backs: Counter[tuple[str, str]] = Counter()
        self.batched: Counter[str] = Counter()
        self.found = self.missed = self.longest_read_ns = 0

    def add_read(self, elapsed_ns: int, *, is_found: bool) -> None:
        """Count a read of a consumer."""
        self.found += is_found
        self.missed += not is_found
        self.longest_read_ns = max(self.longest_read_ns, elapsed_ns)

    def add_deliveries(
        self, topic: str, group: str, messages: int, size_bytes: int, requested: str = ""
    ) -> None:
        """Count the messages of a response. `requested`: topic in the request, if the messages come
        from its retry topic (`topic`). As in Java, the metric counts them for the requested
        topic."""
        self._metrics.count(MESSAGES_OUT, messages, topic=requested or topic, consumer_group=group)
        key = name_counted(topic), name_counted(group)
        found = self.deliveries.get(key)
        if found is None:
            found = self.deliveries[key] = Deliveries()
        found.messages += messages
        found.size_bytes += size_bytes
        found.answers += 1

    def forget(self, topic: str | None, group: str | None) -> None:
        """Remove the counts of a deleted topic or group. The other argument is None."""
        self.batched.pop(topic or "", None)
        for table in (self.deliveries, self.send_backs):
            for key in [key for key in table if topic == key[0] or group == key[1]]:
                del table[key]
