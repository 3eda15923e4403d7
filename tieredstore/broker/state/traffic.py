"""`TrafficCounts`: counts of the messages that a broker delivers and that consumers send back. Each
request is counted, as in Java's BrokerStatsManager. The store counts the puts (`CountedStore`)."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from tieredstore.message.names import LMQ_PREFIX
from tieredstore.metrics import Metrics

MESSAGES_OUT: Final = "rocketmq_messages_out_total"


class Deliveries(msgspec.Struct):
    """Deliveries to one group from one topic: number of messages, bytes of their records, and
    number of answers with messages."""

    messages: int = 0
    size_bytes: int = 0
    answers: int = 0


def name_counted(name: str) -> str:
    """Return the name under which deliveries are counted. All light queues count together, and so
    do their groups, as in Java, because clients choose these names."""
    return LMQ_PREFIX if name.startswith(LMQ_PREFIX) else name


class TrafficCounts:
    """Counts of deliveries, send-backs and reads since the broker's start. Used on the event loop
    only. `deliveries`, `send_backs`: counts by topic and group. `batched`: by topic, messages of
    batches without the first of each batch. `found`,
    `missed`: reads with and without messages. `longest_read_ns`: duration of the longest read.
    `metrics`: registry that also gets the number of delivered messages."""

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
        """Count the messages of one answer. `requested`: topic in the request, if the messages come
        from its retry topic (`topic`). The metric counts them for the topic in the request, as in
        Java."""
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
