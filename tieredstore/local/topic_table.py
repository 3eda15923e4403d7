"""The topics of a Java broker and their attributes: `config/topics.json`, or the database
`config/topics/` of a broker whose queues are in RocksDB."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from tieredstore.disk.errors import translate_os_error
from tieredstore.errors import Corrupt, Invalid
from tieredstore.java_json import quote_integer_keys
from tieredstore.local.queues.rocksdb.database import CURRENT_FILE, read_family

CONFIG_DIRECTORY: Final = "config"
TOPICS_FILE: Final = "topics.json"
TOPICS_DATABASE: Final = "topics"
_OTHER_DATABASES: Final = {
    "metadata": "useSingleRocksDBForAllConfigs",
    "rdb": "configManagerVersion=v2",
}
_TOPIC_FAMILY: Final = "default"
_VERSION_FAMILY: Final = "kvDataVersion"
_VERSION_KEY: Final = b"kvDataVersionKey"
_DAMAGES: Final = (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError)


@dataclass(frozen=True, slots=True)
class TopicTable:
    """Attributes of the topics of a broker: `queue.type`, `cleanup.policy`, `reserve.time`, …

    version: how often the broker has changed its topics (the counter of Java's DataVersion).
    """

    attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    version: int = 0

    def is_compaction(self, topic: str) -> bool:
        """Tell whether only the last message of each key is kept, in files of their own."""
        return self._attribute(topic, "cleanup.policy").upper() == "COMPACTION"

    def is_batch(self, topic: str) -> bool:
        """Tell whether the topic's queues are batch consume queues."""
        return self._attribute(topic, "queue.type").upper() == "BATCHCQ"

    def list_batch_topics(self) -> frozenset[str]:
        """List the topics whose queues are batch consume queues."""
        return frozenset(topic for topic in self.attributes if self.is_batch(topic))

    def reserve_hours(self) -> dict[str, int]:
        """Return `reserve.time` of the topics that set it (Java's -1 is "not set"), hours."""
        hours = {}
        for topic in self.attributes:
            text = self._attribute(topic, "reserve.time")
            if text.isdigit():
                hours[topic] = int(text)
        return hours

    def _attribute(self, topic: str, name: str) -> str:
        attributes = self.attributes.get(topic, {})
        return str(attributes.get(name, attributes.get("+" + name, "")))


def read_topics(root: Path) -> TopicTable:
    """Read the topics of a store's broker: an empty table without any. Where there are a file and a
    database, the newer one counts, the file only when its version is greater, as in Java.

    Raises Corrupt when it cannot be parsed, and Invalid for a database of another form, which would
    hide what must not go to a tier.
    """
    config = root / CONFIG_DIRECTORY
    for name, key in _OTHER_DATABASES.items():
        if (config / name / CURRENT_FILE).exists():
            raise Invalid(
                f"{config / name}: expected the topics in {TOPICS_FILE} or {TOPICS_DATABASE}/, "
                f"found a database of {key}, which is not supported",
                path=str(config / name),
            )
    found = _read_file(config / TOPICS_FILE)
    database = config / TOPICS_DATABASE
    if not (database / CURRENT_FILE).exists():
        return found or TopicTable()
    known = _read_database(database)
    return found if found is not None and found.version > known.version else known


def _read_file(path: Path) -> TopicTable | None:
    """Read the file; its `.bak` where it is not there or half written, as between two steps of the
    broker that writes it."""
    backup = path.with_name(path.name + ".bak")
    try:
        found = _parse_file(path)
    except Corrupt:
        found = _parse_file(backup)
        if found is None:
            raise
        return found
    return _parse_file(backup) if found is None else found


def _parse_file(path: Path) -> TopicTable | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise translate_os_error(error, "read", path) from error
    strict = quote_integer_keys(data)

    def parse() -> TopicTable:
        table: dict[str, Any] = orjson.loads(strict)
        topics: Mapping[str, Any] = table["topicConfigTable"]
        version = table.get("dataVersion") or {}
        return TopicTable(
            {topic: _attributes_of(topic_config) for topic, topic_config in topics.items()},
            int(version.get("counter", 0)),
        )

    return _parse(parse, path, "JSON with a topicConfigTable")


def _read_database(directory: Path) -> TopicTable:
    """Read the database: a topic's name is the key, its TopicConfig as JSON the value."""
    topics = read_family(directory, _TOPIC_FAMILY)
    versions = dict(read_family(directory, _VERSION_FAMILY))

    def parse() -> TopicTable:
        version = versions.get(_VERSION_KEY)
        return TopicTable(
            {key.decode(): _attributes_of(orjson.loads(value)) for key, value in topics},
            0 if version is None else int(orjson.loads(version)["counter"]),
        )

    return _parse(parse, directory, "each topic's TopicConfig as JSON")


def _attributes_of(topic_config: Mapping[str, Any]) -> dict[str, str]:
    return dict(topic_config.get("attributes") or {})


def _parse(parse: Callable[[], TopicTable], path: Path, expected: str) -> TopicTable:
    try:
        return parse()
    except _DAMAGES as error:
        raise Corrupt(f"{path}: expected {expected}: {error}", path=str(path)) from None
