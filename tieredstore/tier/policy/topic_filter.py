"""Topics that are excluded from the tier, and the storage level of each topic."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import translate
from functools import lru_cache

from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.message.names import LMQ_PREFIX, find_name_fault, is_system_topic
from tieredstore.metrics import Metrics

_MOST_NAMES = 200_000
"""Maximum number of topics whose results are cached. For further topics, the result is computed
each time."""


class TopicPatterns:
    """Selects topics by patterns of included and excluded topics. Thread-safe. The patterns are
    settings that may change at any time."""

    def __init__(self) -> None:
        self._known = _Compiled("", "")

    def admit(self, topic: str, included: str, excluded: str) -> bool:
        """Return whether a topic is included and not excluded. An empty `included` includes all
        topics. Both are comma-separated, case-sensitive shell patterns."""
        if not included and not excluded:
            return True
        known = self._known
        if known.lists != (included, excluded):
            known = self._known = _Compiled(included, excluded)
        return known.admit(topic)


class _Compiled:
    def __init__(self, included: str, excluded: str) -> None:
        self.lists = (included, excluded)
        self._included = _compile(included)
        self._excluded = _compile(excluded)
        self._found: dict[str, bool] = {}

    def admit(self, topic: str) -> bool:
        found = self._found.get(topic)
        if found is None:
            found = (self._included is None or bool(self._included.match(topic))) and not (
                self._excluded is not None and self._excluded.match(topic)
            )
            if len(self._found) < _MOST_NAMES:
                self._found[topic] = found
        return found


def _compile(patterns: str) -> re.Pattern[str] | None:
    """Compile a list of shell patterns into one regular expression, or None for an empty list."""
    words = [word for word in (word.strip() for word in patterns.split(",")) if word]
    return re.compile("|".join(map(translate, words))) if words else None


EXCLUDED_METRIC = "rocketmq_tiered_store_x_excluded_topics"
BY_PATTERN = "excluded by pattern"
BY_LEVEL = "its storage level is DISABLE"


@lru_cache(_MOST_NAMES)
def _judge_name(topic: str) -> str | None:
    """Return why a topic with this name is never in a tier, or None."""
    if not topic.strip():
        return "blank name"
    if is_system_topic(topic):
        return "system topic"
    if topic.startswith(LMQ_PREFIX):
        return "light message queue"
    return "a name that no tier can hold" if find_name_fault(topic) is not None else None


class TopicFilter:
    """Decides which topics are uploaded. Thread-safe. Three kinds of topics are not uploaded:

    - Topics that are never in a tier (`is_filtered`): system topics, light queues, topics named
      like the broker or the cluster, and topics excluded at run time. An example is a queue type
      that the tier's format does not support (BatchCQ, compaction: D25).
    - Topics whose storage level is DISABLE (`take_levels`). Like those above, they are read only
      from the local store, even if the tier has messages of them.
    - Topics excluded by `tieredStoreExcludeTopics` or `tieredStoreIncludeTopics`. Their messages in
      the tier can be read until they expire.
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
        """Number that grows with each change of the topics that are uploaded. A change of patterns
        is noticed when `take_levels` reads the patterns."""
        self._patterns = TopicPatterns()

    def is_filtered(self, topic: str) -> bool:
        return self.reason(topic) is not None

    def reason(self, topic: str) -> str | None:
        """Return why a topic is never uploaded, or None."""
        if topic in self._own_names:
            return "topic of the broker or the cluster"
        return _judge_name(topic) or self._excluded.get(topic)

    def exclude(self, topic: str, reason: str) -> None:
        """Exclude a topic from the tier. Its segments are kept."""
        with self._lock:
            self._excluded = {**self._excluded, topic: reason}
            self.version += 1
            self._report(reason)

    def include(self, topic: str) -> None:
        """Undo the exclusion of a topic."""
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
        """Set the storage levels of topics with a level of their own. Returns whether these levels
        or the configured patterns have changed since the last call."""
        self._levels = dict(levels)
        policies = (self._config.include_topics, self._config.exclude_topics, self._levels)
        with self._lock:
            has_changed, self._policies = self._policies != policies, policies
            self.version += has_changed
        return has_changed

    @property
    def is_settled(self) -> bool:
        """Return whether patterns and storage levels are unchanged since the last `take_levels`."""
        config = self._config
        return self._policies == (config.include_topics, config.exclude_topics, self._levels)

    def find_level(self, topic: str) -> StorageLevel:
        """Return the storage level of a topic: its own or the broker's. If the broker's level is
        DISABLE, it applies to all topics."""
        level = self._config.storage_level
        return level if level is StorageLevel.DISABLE else self._levels.get(topic, level)

    def find_read_level(self, topic: str) -> StorageLevel:
        """Return the storage level for reads of a topic. DISABLE if the topic is never in a
        tier."""
        return StorageLevel.DISABLE if self.reason(topic) is not None else self.find_level(topic)

    def is_uploaded(self, topic: str) -> bool:
        """Return whether messages of a topic are currently uploaded."""
        return self.find_policy(topic) is None and not self.is_filtered(topic)

    def find_policy(self, topic: str) -> str | None:
        """Return the policy (patterns or storage level) that excludes a topic, or None."""
        if self._levels.get(topic) is StorageLevel.DISABLE:
            return BY_LEVEL
        config = self._config
        if self._patterns.admit(topic, config.include_topics, config.exclude_topics):
            return None
        return BY_PATTERN

    @property
    def has_policies(self) -> bool:
        """Return whether any policy may exclude topics."""
        config = self._config
        return bool(config.include_topics or config.exclude_topics or self._levels)

    def report_policies(self, topics: Iterable[str]) -> None:
        """Count the topics of the local store that policies exclude from uploads."""
        found = Counter(
            policy
            for topic in set(topics)
            if (policy := self.find_policy(topic)) is not None and not self.is_filtered(topic)
        )
        for policy in (BY_PATTERN, BY_LEVEL):
            self._metrics.gauge(EXCLUDED_METRIC, found[policy], reason=policy)
