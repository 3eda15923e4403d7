"""`TopicConfigManager`: the topics of the broker, in `config/topics.json`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import aiofiles.os
import msgspec

from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.config_manager import ConfigManager, DataVersion
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import Busy, Invalid
from tieredstore.message.names import DLQ_PREFIX, LMQ_PREFIX, RETRY_PREFIX, is_system_topic

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1
DEFAULT_TOPIC: Final = "TBW102"
"""Template for topics that a send creates."""

MESSAGE_TYPE: Final = "message.type"
"""Attribute of a topic: the type of its messages, or MIXED for all types."""
MAX_TOPICS: Final = 100_000
"""Maximum number of topics for automatic creation. Operators can create more."""
MAX_QUEUE_NUMS: Final = 65_536
"""Maximum number of queues of a topic. It bounds the loops over a topic's queues."""

_MAX_TOPIC_LENGTH: Final = 127
_MAX_RETRY_TOPIC_LENGTH: Final = 255
_DATABASES: Final = ("topics", "metadata", "rdb")
"""Databases in which a Java broker stores its configuration with `storeType=defaultRocksDB` or
similar settings."""
_ILLEGAL: Final = re.compile(r"[^%|a-zA-Z0-9_-]")


class TopicConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """Topic (Java's TopicConfig). `perm`: permission bits, 4 for read, 2 for write, 1 for a
    template of new topics."""

    topic_name: str
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}

    @property
    def queue_nums(self) -> int:
        """Number of queues that producers or consumers use."""
        return max(self.read_queue_nums, self.write_queue_nums)

    @property
    def is_lite(self) -> bool:
        """True if the topic is the parent of lite topics."""
        return self.attributes.get(MESSAGE_TYPE, "").upper() == "LITE"

    @property
    def is_readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)


class _Table(msgspec.Struct, kw_only=True, rename="camel"):
    topic_config_table: dict[str, TopicConfig]
    data_version: DataVersion | None = None


TopicListener = Callable[[str], object]


class TopicConfigManager(ConfigManager):
    """Table of topics. Call `add_system_topics` after `load`. `has_lmq`: True if light queues are
    enabled (`enableLmq`)."""

    def __init__(
        self,
        config_folder: Path,
        settings: BrokerSettings,
        clock: Clock = SYSTEM_CLOCK,
        *,
        has_lmq: bool = False,
    ) -> None:
        super().__init__(config_folder / "topics.json", clock)
        self._settings = settings
        self._has_lmq = has_lmq
        self._topics: dict[str, TopicConfig] = {}
        self._listeners: list[TopicListener] = []
        self._changed: dict[str, int] = {}  # the last unpersisted change of a topic
        self._being_deleted = Counter[str]()
        self._leaving: dict[str, TopicConfig] = {}  # being deleted, and still in the file

    async def load(self) -> None:
        """Read the topics like `ConfigManager.load`. Also raises Invalid if a Java broker keeps its
        configuration in a database."""
        for name in _DATABASES:
            database = self.path.parent / name
            if await aiofiles.os.path.exists(database / "CURRENT"):
                raise Invalid(
                    f"{database}: expected the broker's configuration in JSON files, found a "
                    "database: export it by mqadmin rocksDBConfigToJson, and move it away",
                    path=str(database),
                )
        await super().load()

    def find_topic(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    def find_consumed(self, topic: str) -> TopicConfig | None:
        """Return the topic named in a consumer's request, or None. As in Java, a light queue counts
        as a topic with a single queue, although it is not in the table."""
        if self._has_lmq and topic.startswith(LMQ_PREFIX):
            return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
        return self._topics.get(topic)

    def find_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue into which to put a message accepted for queue `queue_id`. If the topic
        has fewer queues now, no consumer would read that queue, so another one is returned."""
        config = self._topics.get(topic)
        if config is None or queue_id < config.queue_nums or not config.read_queue_nums:
            return queue_id
        return queue_id % config.read_queue_nums

    def list_topics(self) -> Mapping[str, TopicConfig]:
        """Return all topics by name. Callers must not change this table."""
        return MappingProxyType(self._topics)

    def add_listener(self, listener: TopicListener) -> None:
        """Call `listener` with the name of each created, changed or deleted topic."""
        self._listeners.append(listener)

    def update_topic(self, config: TopicConfig) -> None:
        """Create or replace a topic with the attributes in `config`. Raises Invalid for an invalid
        number of queues, and Busy while the topic is being deleted."""
        check_queue_nums(f"topic {config.topic_name}", config.read_queue_nums)
        check_queue_nums(f"topic {config.topic_name}", config.write_queue_nums)
        self._put(config)

    def delete_topic(self, topic: str) -> bool:
        """Delete a topic from the table. Returns whether the topic existed."""
        if self._topics.pop(topic, None) is None:
            return False
        self._notify(topic)
        return True

    @contextmanager
    def deleting(self, topics: Collection[str]) -> Iterator[None]:
        """Delete topics from the table, and let the `with` block delete their messages. Until the
        block ends, creating such a topic raises Busy, because the block would delete its new
        messages too. The topics stay in the file until then, and an error in the block restores
        them in the table. Otherwise the remaining messages could not be deleted by name."""
        self._being_deleted.update(topics)
        self._leaving |= {topic: self._topics[topic] for topic in topics if topic in self._topics}
        for topic in topics:
            self.delete_topic(topic)
        is_done = False
        try:
            yield
            is_done = True
        finally:
            self._being_deleted -= Counter(topics)
            for topic in set(topics) & self._leaving.keys():
                if is_done or topic not in self._being_deleted:  # else another block decides
                    config = self._leaving.pop(topic)
                    if not is_done:
                        self._topics[topic] = config
                    self._notify(topic)

    def is_persisted(self, topic: str) -> bool:
        """Return whether the current state of a topic is in the file."""
        if self._changed and not self.is_changed:
            self._changed.clear()
        return self._changed.get(topic, 0) <= self._persisted

    async def wait_until_persisted(self, topic: str) -> None:
        """Wait until the current state of a topic is in the file. Call this before acknowledging a
        message in the topic, which could not be read after a crash without it. Raises Unavailable
        or Exhausted."""
        if not self.is_persisted(topic):
            await self.persist()

    def list_untyped(self) -> list[str]:
        """Return the clients' topics without a message type, in order. Over gRPC they accept only
        normal messages. Topics created by the broker are omitted."""
        own = self.list_system_topics()
        return sorted(
            name
            for name, config in self._topics.items()
            if MESSAGE_TYPE not in config.attributes
            and name not in own
            and not is_system_topic(name)
            and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        )

    def create_on_send(
        self, topic: str, default_topic: str, queue_nums: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Return the topic of a send. An unknown topic is created from the template named by the
        producer. Returns None if that is forbidden or impossible. Raises Invalid for an invalid
        name, and Busy while the topic is being deleted or if MAX_TOPICS exist."""
        found = self._topics.get(topic)
        if found is not None:
            return found
        default = self._topics.get(default_topic)
        if default is None or not default.perm & PERM_INHERIT:
            return None
        if default_topic == DEFAULT_TOPIC and not self._settings.auto_create_topic_enable:
            return None
        check_topic_name(topic)
        count = max(min(queue_nums, default.write_queue_nums), 0)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=default.perm & ~PERM_INHERIT,
            topic_filter_type=default.topic_filter_type,
            topic_sys_flag=sys_flag,
            attributes={MESSAGE_TYPE: "MIXED"} if self._settings.auto_create_mixed_topics else {},
        )
        self._put_for_client(config)
        return config

    def create_on_send_back(
        self, topic: str, queue_nums: int, perm: int = PERM_READ | PERM_WRITE, sys_flag: int = 0
    ) -> TopicConfig:
        """Return a topic of the broker (retry, dead letters, …), creating it if it is unknown.
        Raises Busy while the topic is being deleted or if MAX_TOPICS exist."""
        found = self._topics.get(topic)
        if found is not None:
            return found
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            perm=perm,
            topic_sys_flag=sys_flag,
        )
        self._put_for_client(config)
        return config

    def add_system_topics(self) -> None:
        """Create the topics that a Java broker creates at startup, if missing."""
        for name, count, perm in self._system_topics():
            if name not in self._topics:
                config = TopicConfig(topic_name=name, read_queue_nums=count, perm=perm)
                self._put(msgspec.structs.replace(config, write_queue_nums=count))

    def list_system_topics(self) -> frozenset[str]:
        """Return the names of the broker's own topics, including those that do not exist."""
        return frozenset(name for name, _, _ in self._system_topics())

    def list_fields(self) -> dict[str, object]:
        topics = self._leaving | self._topics
        return {"topicConfigTable": iter(topics.items()), "dataVersion": self.data_version}

    def decode(self, data: bytes) -> None:
        table = msgspec.json.decode(data, type=_Table)
        self._topics = dict(table.topic_config_table)
        self.data_version = table.data_version or DataVersion()

    def _put_for_client(self, config: TopicConfig) -> None:
        """Add a topic for a client's request. Raises Busy if MAX_TOPICS exist."""
        topic = config.topic_name
        if len(self._topics) >= MAX_TOPICS:
            raise Busy(
                f"topic {topic}: there are {MAX_TOPICS} topics, requests of clients create no "
                "further ones",
                topic=topic,
            )
        self._put(config)

    def _put(self, config: TopicConfig) -> None:
        topic = config.topic_name
        if self._topics.get(topic) == config:
            return
        if topic in self._being_deleted:
            raise Busy(f"topic {topic} is being deleted", topic=topic)
        self._topics[topic] = config
        self._notify(topic)

    def _notify(self, topic: str) -> None:
        self.mark_changed()
        self._changed[topic] = self._changes
        for listener in self._listeners:
            listener(topic)

    def _system_topics(self) -> Iterator[tuple[str, int, int]]:
        settings = self._settings
        both = PERM_READ | PERM_WRITE
        cluster, broker = settings.broker_cluster_name, settings.broker_name
        yield "SELF_TEST_TOPIC", 1, both
        if settings.auto_create_topic_enable:
            yield DEFAULT_TOPIC, settings.default_topic_queue_nums, both | PERM_INHERIT
        yield "BenchmarkTest", 1024, both
        yield cluster, 16, PERM_INHERIT | (both if settings.cluster_topic_enable else 0)
        yield broker, 1, PERM_INHERIT | (both if settings.broker_topic_enable else 0)
        yield "OFFSET_MOVED_EVENT", 1, both
        yield "SCHEDULE_TOPIC_XXXX", 18, both
        if settings.trace_topic_enable:
            yield settings.msg_trace_topic_name, 1, both
        yield f"{cluster}_REPLY_TOPIC", 1, both
        yield f"rmq_sys_REVIVE_LOG_{cluster}", 8, both
        yield f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, PERM_INHERIT
        yield "RMQ_SYS_TRANS_HALF_TOPIC", 1, both
        yield "RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, both
        yield "TRANS_CHECK_MAX_TIME_TOPIC", 1, both
        yield "rmq_sys_wheel_timer", 1, both


def check_topic_name(topic: str) -> None:
    """Raise Invalid if a topic name breaks Java's rules."""
    is_own = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    limit = _MAX_RETRY_TOPIC_LENGTH if is_own else _MAX_TOPIC_LENGTH
    if not topic.strip():
        raise Invalid("The specified topic is blank.", topic=topic)
    if _ILLEGAL.search(topic):
        raise Invalid(
            f"The specified topic {topic!r} contains illegal characters, allowing only "
            "^[%|a-zA-Z0-9_-]+$",
            topic=topic,
        )
    if len(topic) > limit:
        raise Invalid(f"The specified topic is longer than topic max length {limit}.", topic=topic)


def check_queue_nums(where: str, queue_nums: int) -> None:
    """Raise Invalid for an invalid number of queues."""
    if not 0 <= queue_nums <= MAX_QUEUE_NUMS:
        raise Invalid(f"{where}: expected 0 to {MAX_QUEUE_NUMS} queues, found {queue_nums}")
