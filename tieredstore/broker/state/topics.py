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
from tieredstore.message.names import DLQ_PREFIX, RETRY_PREFIX

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1
DEFAULT_TOPIC: Final = "TBW102"
"""The topic after which sends to unknown topics make them."""

MAX_QUEUE_NUMS: Final = 65_536
"""Queues of one topic: what goes over all of them is to end."""

_MAX_TOPIC_LENGTH: Final = 127
_MAX_RETRY_TOPIC_LENGTH: Final = 255
_DATABASES: Final = ("topics", "metadata", "rdb")
"""Where Java keeps its configuration with `storeType=defaultRocksDB` and other settings."""
_ILLEGAL: Final = re.compile(r"[^%|a-zA-Z0-9_-]")


class TopicConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """A topic, as Java's TopicConfig. perm: bits, 4 read, 2 write, 1 others are made after it."""

    topic_name: str
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = {}

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
    """The table of topics. `add_system_topics` is called after `load`."""

    def __init__(
        self, config_folder: Path, settings: BrokerSettings, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(config_folder / "topics.json", clock)
        self._settings = settings
        self._topics: dict[str, TopicConfig] = {}
        self._listeners: list[TopicListener] = []
        self._changed: dict[str, int] = {}  # the last change of a topic that is not persisted
        self._being_deleted = Counter[str]()

    async def load(self) -> None:
        """Read the file as `ConfigManager.load`. Raises also Invalid where a Java broker has kept
        its configuration in a database."""
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

    def list_topics(self) -> Mapping[str, TopicConfig]:
        """Return the table, by topic; it is not to be changed."""
        return MappingProxyType(self._topics)

    def add_listener(self, listener: TopicListener) -> None:
        """Have `listener` called with the name of each topic that is made, changed or deleted."""
        self._listeners.append(listener)

    def update_topic(self, config: TopicConfig) -> None:
        """Make or replace a topic. Its attributes are those of the new config. Raises Invalid for a
        number of queues that no topic may have, Busy for a topic that is being deleted."""
        check_queue_nums(f"topic {config.topic_name}", config.read_queue_nums)
        check_queue_nums(f"topic {config.topic_name}", config.write_queue_nums)
        self._put(config)

    def delete_topic(self, topic: str) -> bool:
        """Delete a topic from the table; tells whether it was there."""
        if self._topics.pop(topic, None) is None:
            return False
        self._tell(topic)
        return True

    @contextmanager
    def deleting(self, topics: Collection[str]) -> Iterator[None]:
        """Delete topics from the table, and let nobody make them again before the block ends, which
        deletes their messages: what is sent meanwhile would go with those. Who tries gets Busy."""
        self._being_deleted.update(topics)
        try:
            for topic in topics:
                self.delete_topic(topic)
            yield
        finally:
            self._being_deleted -= Counter(topics)

    def is_persisted(self, topic: str) -> bool:
        """Tell whether the file has a topic as it is now."""
        if self._changed and not self.is_changed:
            self._changed.clear()
        return self._changed.get(topic, 0) <= self._persisted

    async def wait_until_persisted(self, topic: str) -> None:
        """Wait until the file has a topic as it is now: before a message in it is acknowledged,
        which nobody could read after a crash otherwise. Raises Unavailable or Exhausted."""
        if not self.is_persisted(topic):
            await self.persist()

    def create_on_send(
        self, topic: str, default_topic: str, queue_nums: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """Return the topic of a send; an unknown one is made after the producer's default topic.
        None when that is not allowed or not possible.

        Raises Invalid for a name that no topic may have, Busy for one that is being deleted.
        """
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
        )
        self._put(config)
        return config

    def create_on_send_back(
        self, topic: str, queue_nums: int, perm: int = PERM_READ | PERM_WRITE, sys_flag: int = 0
    ) -> TopicConfig:
        """Return a topic of the broker's own making (retry, dead letters, …); made if unknown.
        Raises Busy for one that is being deleted."""
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
        self._put(config)
        return config

    def add_system_topics(self) -> None:
        """Make the topics that a Java broker makes at its start, those that are not there."""
        for name, queue_nums, perm in self._system_topics():
            self.create_on_send_back(name, queue_nums, perm)

    def list_system_topics(self) -> frozenset[str]:
        """List the topics that are the broker's own, whether they were made or not."""
        return frozenset(name for name, _, _ in self._system_topics())

    def encode(self) -> bytes:
        table = _Table(topic_config_table=self._topics, data_version=self.data_version)
        return msgspec.json.format(msgspec.json.encode(table), indent=1)

    def decode(self, data: bytes) -> None:
        table = msgspec.json.decode(data, type=_Table)
        self._topics = dict(table.topic_config_table)
        self.data_version = table.data_version or DataVersion()

    def _put(self, config: TopicConfig) -> None:
        topic = config.topic_name
        if self._topics.get(topic) == config:
            return
        if topic in self._being_deleted:
            raise Busy(f"topic {topic} is being deleted", topic=topic)
        self._topics[topic] = config
        self._tell(topic)

    def _tell(self, topic: str) -> None:
        self.mark_changed()
        self._changed[topic] = self._changes
        for listener in self._listeners:
            listener(topic)

    def _system_topics(self) -> Iterator[tuple[str, int, int]]:
        """Name, number of queues and permission of each."""
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
    """Raise Invalid for a name that no topic may have, by Java's rules."""
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
    """Raise Invalid for a number of queues that no topic may have."""
    if not 0 <= queue_nums <= MAX_QUEUE_NUMS:
        raise Invalid(f"{where}: expected 0 to {MAX_QUEUE_NUMS} queues, found {queue_nums}")
