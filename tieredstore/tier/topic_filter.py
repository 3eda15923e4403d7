"""TopicFilter: which topics stay out of the tier."""

from __future__ import annotations

import threading

from tieredstore.config import StoreConfig
from tieredstore.message.names import LMQ_PREFIX, find_name_fault, is_system_topic
from tieredstore.metrics import Metrics

EXCLUDED_METRIC = "rocketmq_tiered_store_x_excluded_topics"


class TopicFilter:
    """Topics that are never uploaded and always read locally. Thread-safe.

    System topics, light queues, the topics named like broker and cluster, and those excluded at
    run time with a reason: a queue type that the tier's format cannot hold (BatchCQ, compaction:
    D25), or an operator's wish.
    """

    def __init__(self, config: StoreConfig, metrics: Metrics | None = None) -> None:
        self._own_names = {config.broker_name, config.broker_cluster_name}
        self._metrics = metrics if metrics is not None else Metrics()
        self._lock = threading.Lock()
        self._excluded: dict[str, str] = {}
        self.version = 0
        """Another one after each change of what is filtered."""

    def is_filtered(self, topic: str) -> bool:
        return self.reason(topic) is not None

    def reason(self, topic: str) -> str | None:
        """Tell why a topic stays out of the tier; None when it does not."""
        if not topic.strip():
            return "blank name"
        if is_system_topic(topic):
            return "system topic"
        if topic in self._own_names:
            return "topic of the broker or the cluster"
        if topic.startswith(LMQ_PREFIX):
            return "light message queue"
        if find_name_fault(topic) is not None:
            return "a name that no tier can hold"
        return self._excluded.get(topic)

    def exclude(self, topic: str, reason: str) -> None:
        """Keep a topic out of the tier from now on; what is there stays."""
        with self._lock:
            self._excluded = {**self._excluded, topic: reason}
            self.version += 1
            self._report(reason)

    def include(self, topic: str) -> None:
        """Take an exclusion back."""
        with self._lock:
            excluded = dict(self._excluded)
            reason = excluded.pop(topic, None)
            self._excluded = excluded
            self.version += 1
            if reason is not None:
                self._report(reason)

    def _report(self, reason: str) -> None:
        count = sum(1 for found in self._excluded.values() if found == reason)
        self._metrics.gauge(EXCLUDED_METRIC, count, reason=reason)
