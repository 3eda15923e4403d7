"""TopicFilter: which topics stay out of the tier, and which storage level each has."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.message.names import LMQ_PREFIX, find_name_fault, is_system_topic
from tieredstore.metrics import Metrics
from tieredstore.tier.policy.topic_patterns import TopicPatterns

EXCLUDED_METRIC = "rocketmq_tiered_store_x_excluded_topics"
BY_PATTERN = "excluded by pattern"
BY_LEVEL = "its storage level is DISABLE"


_MOST_NAMES = 200_000
"""Topics whose names are judged once."""


@lru_cache(_MOST_NAMES)
def _judge_name(topic: str) -> str | None:
    """Why nothing of a topic of that name is ever in any tier; None when that is not so."""
    if not topic.strip():
        return "blank name"
    if is_system_topic(topic):
        return "system topic"
    if topic.startswith(LMQ_PREFIX):
        return "light message queue"
    return "a name that no tier can hold" if find_name_fault(topic) is not None else None


class TopicFilter:
    """Thread-safe. There are three kinds of topics that are not uploaded:

    those of which nothing is ever in a tier (`is_filtered`): system topics, light queues, the
    topics named like broker and cluster, and those excluded at run time with a reason: a queue
    type that the tier's format cannot hold (BatchCQ, compaction: D25). The local store alone
    answers reads of them;

    those whose storage level is DISABLE (`take_levels`), to which the same happens, though the tier
    may have something of them;

    those that `tieredStoreExcludeTopics` and `tieredStoreIncludeTopics` keep out. What the tier has
    of them is read until it expires.
    """

    def __init__(self, config: StoreConfig, metrics: Metrics | None = None) -> None:
        self._config = config
        self._own_names = {config.broker_name, config.broker_cluster_name}
        self._metrics = metrics if metrics is not None else Metrics()
        self._lock = threading.Lock()
        self._excluded: dict[str, str] = {}
        self._levels: Mapping[str, StorageLevel] = {}
        self._policies: object = ("", "", {})
        self.version = 0
        """Another one after each change of what is uploaded, of that of patterns once `take_levels`
        has seen it."""
        self._patterns = TopicPatterns()

    def is_filtered(self, topic: str) -> bool:
        return self.reason(topic) is not None

    def reason(self, topic: str) -> str | None:
        """Tell why nothing of a topic is ever in the tier; None when that is not so."""
        if topic in self._own_names:
            return "topic of the broker or the cluster"
        return _judge_name(topic) or self._excluded.get(topic)

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

    # Policies

    def take_levels(self, levels: Mapping[str, StorageLevel]) -> bool:
        """Let these be the levels of topics that have one of their own, from now on. Tells
        whether they, or the patterns, are others than at the last call."""
        self._levels = dict(levels)
        policies = (self._config.include_topics, self._config.exclude_topics, self._levels)
        with self._lock:
            has_changed, self._policies = self._policies != policies, policies
            self.version += has_changed
        return has_changed

    @property
    def is_settled(self) -> bool:
        """Whether policies are as the last `take_levels` found them."""
        config = self._config
        return self._policies == (config.include_topics, config.exclude_topics, self._levels)

    def find_level(self, topic: str) -> StorageLevel:
        """Return the level that counts for a topic: its own one, else that of the broker; DISABLE
        for all when that is the broker's."""
        level = self._config.storage_level
        return level if level is StorageLevel.DISABLE else self._levels.get(topic, level)

    def is_uploaded(self, topic: str) -> bool:
        """Tell whether messages of a topic go to the tier now."""
        return self.find_policy(topic) is None and not self.is_filtered(topic)

    def find_policy(self, topic: str) -> str | None:
        """Tell which policy keeps a topic from being uploaded; None when none does."""
        if self._levels.get(topic) is StorageLevel.DISABLE:
            return BY_LEVEL
        config = self._config
        if self._patterns.admit(topic, config.include_topics, config.exclude_topics):
            return None
        return BY_PATTERN

    @property
    def has_policies(self) -> bool:
        """Whether a policy may keep a topic out now."""
        config = self._config
        return bool(config.include_topics or config.exclude_topics or self._levels)

    def report_policies(self, topics: Iterable[str]) -> None:
        """Count those of the local store's topics that policies keep out."""
        found = Counter(
            policy
            for topic in set(topics)
            if (policy := self.find_policy(topic)) is not None and not self.is_filtered(topic)
        )
        for policy in (BY_PATTERN, BY_LEVEL):
            self._metrics.gauge(EXCLUDED_METRIC, found[policy], reason=policy)
