"""Topics of a Java broker and their attributes, from `config/topics.json` or, if the broker's
queues are in RocksDB, from the database `config/topics/`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

from tieredstore.config import StorageLevel
from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import cut_zeros
from tieredstore.errors import Corrupt, Invalid
from tieredstore.java_json import quote_integer_keys
from tieredstore.local.queues.rocksdb.database import CURRENT_FILE, read_family
from tieredstore.message.properties import parse_integer

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
STORAGE_LEVEL: Final = "tiered.storage.level"
"""Attribute that this project adds to topics. Its value is a name of `StorageLevel`."""
_COMPACTED_LOGS: Final = Path("compaction", "compactionLog")
_READ_AGAIN_SECONDS: Final = 0.05
_MOST_READS: Final = 10
_SETTLED_NS: Final = 3_000_000_000
"""Minimum age of a file's modification time (ns). An unchanged time that is younger does not prove
that the file is unchanged."""
_DAMAGES: Final = (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicTable:
    """Attributes of a broker's topics, such as `queue.type`, `cleanup.policy` and `reserve.time`.
    `version`: number of times that the broker has changed its topics (the counter of Java's
    DataVersion). `compacted`: topics with a folder in the store's `compaction/`, which the table
    may lack."""

    attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    version: int = 0
    compacted: frozenset[str] = frozenset()

    def is_compaction(self, topic: str) -> bool:
        """Return whether the topic is a compaction topic, which keeps only the last message of each
        key, in separate files."""
        if topic not in self.attributes:
            return topic in self.compacted
        return self._attribute(topic, "cleanup.policy").upper() == "COMPACTION"

    def is_batch(self, topic: str) -> bool:
        """Return whether the topic's queues are batch consume queues."""
        return self._attribute(topic, "queue.type").upper() == "BATCHCQ"

    def list_batch_topics(self) -> frozenset[str]:
        """Return the topics whose queues are batch consume queues."""
        return frozenset(topic for topic in self.attributes if self.is_batch(topic))

    def list_lite_topics(self) -> frozenset[str]:
        """Return the topics whose messages may have a lite topic."""
        return frozenset(
            topic
            for topic, attributes in self.attributes.items()
            if attributes and self._attribute(topic, "message.type").upper() == "LITE"
        )

    def reserve_hours(self) -> dict[str, int]:
        """Return `reserve.time` in hours, for the topics that set it. Java's value -1 means that it
        is not set."""
        hours = {}
        for topic in self.attributes:
            number = parse_integer(self._attribute(topic, "reserve.time").encode())
            if number is not None and number >= 0:
                hours[topic] = number
        return hours

    def storage_levels(self) -> dict[str, StorageLevel]:
        """Return `tiered.storage.level` for the topics that set it. Unknown values are ignored."""
        levels = {}
        for topic, attributes in self.attributes.items():
            if attributes:
                level = StorageLevel.__members__.get(self._attribute(topic, STORAGE_LEVEL))
                if level is not None:
                    levels[topic] = level
        return levels

    def _attribute(self, topic: str, name: str) -> str:
        attributes = self.attributes.get(topic, {})
        return str(attributes.get(name, attributes.get("+" + name, "")))


class TopicTableReader:
    """Reads the topics of a store repeatedly, even while its broker writes them. Thread-safe.

    A broker rewrites the file in place, or removes it before it creates the new one. While the file
    is missing or cannot be parsed, the last table is used, because a topic that must not be tiered
    would otherwise look like any other. Without a last table, the read is repeated for half a
    second. A missing file is awaited only if a broker is running.

    `is_in_use`: whether the store has an owner now. `pause`: waits between two reads.
    """

    def __init__(
        self,
        root: Path,
        is_in_use: Callable[[], bool] = lambda: False,
        pause: Callable[[], object] = lambda: time.sleep(_READ_AGAIN_SECONDS),
    ) -> None:
        self._root = root
        self._is_in_use = is_in_use
        self._pause = pause
        self._lock = threading.Lock()
        self._known: TopicTable | None = None
        self._signature: object = None
        self._is_warned = False

    def read(self) -> TopicTable:
        """Return the table, which is cached as long as the files are unchanged. Raises Corrupt if
        no table could be read yet, and the errors of `read_topics` for unknown contents."""
        with self._lock:
            signature = _sign_files(self._root)
            if self._known is not None and signature == self._signature is not None:
                return self._known
            self._signature = None
            try:
                found = self._read_first() if self._known is None else find_topics(self._root)
            except Corrupt as error:
                if self._known is None:
                    raise
                return self._keep(self._known, str(error))
            if found is None and self._known is not None and self._known.attributes:
                return self._keep(self._known, f"{self._root / CONFIG_DIRECTORY}: no topics there")
            self._is_warned = False
            self._known = (
                found if found is not None else TopicTable(compacted=_list_compacted(self._root))
            )
            self._signature = signature
            return self._known

    def _keep(self, known: TopicTable, why: str) -> TopicTable:
        if not self._is_warned:
            _log.warning("%s. The topics that were read before count until they can be read", why)
            self._is_warned = True
        return known

    def _read_first(self) -> TopicTable | None:
        for _ in range(_MOST_READS - 1):
            with suppress(Corrupt):
                found = find_topics(self._root)
                if found is not None or not self._is_in_use():
                    return found
            self._pause()
        return find_topics(self._root)


def _sign_files(root: Path) -> object:
    """Return the state of the files that `find_topics` reads, if the broker keeps its topics in a
    file. Returns None otherwise, and if a file changed so recently that the state might not show
    another change."""
    config = root / CONFIG_DIRECTORY
    databases = [config / name / CURRENT_FILE for name in (TOPICS_DATABASE, *_OTHER_DATABASES)]
    files = (config / TOPICS_FILE, config / f"{TOPICS_FILE}.bak", root / _COMPACTED_LOGS)
    found = [_sign_file(path) for path in files]
    if found[0] is None or any(path.exists() for path in databases):
        return None
    newest_ns = max(stamp[2] for stamp in found if stamp is not None)
    return tuple(found) if newest_ns < time.time_ns() - _SETTLED_NS else None


def _sign_file(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_topics(root: Path) -> TopicTable:
    """Read the topics of a store's broker like `find_topics`. The table is empty without topics."""
    found = find_topics(root)
    return TopicTable(compacted=_list_compacted(root)) if found is None else found


def find_topics(root: Path) -> TopicTable | None:
    """Read the topics of a store's broker. Returns None if the store has neither a file nor a
    database of topics. If it has both, the file is used only if its version is greater, as in Java.
    Raises Corrupt if the topics cannot be parsed. Raises Invalid for a database in another format,
    because it could hide topics that must not be tiered."""
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
    if (database / CURRENT_FILE).exists():
        known = _read_database(database)
        if found is None or found.version <= known.version:
            found = known
    return None if found is None else replace(found, compacted=_list_compacted(root))


def _list_compacted(root: Path) -> frozenset[str]:
    try:
        return frozenset(path.name for path in (root / _COMPACTED_LOGS).iterdir())
    except OSError:
        return frozenset()


def _read_file(path: Path) -> TopicTable | None:
    """Read the file, or its `.bak` if the file is missing or incomplete because a broker is writing
    it."""
    backup = path.with_name(path.name + ".bak")
    damage: Corrupt | None = None
    for each in (path, backup):
        try:
            found = _parse_file(each)
        except Corrupt as error:
            damage = damage or error
        else:
            if found is not None:
                return found
    if damage is None:
        return None
    raise Corrupt(
        f"{damage}. There is no good {backup.name}. Put back a good copy (`tieredstore config "
        "restore` takes one from a backup)",
        path=damage.path,
    )


def _parse_file(path: Path) -> TopicTable | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise translate_os_error(error, "read", path) from error
    strict = quote_integer_keys(cut_zeros(data))

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
    """Read the database, whose keys are topic names and whose values are TopicConfigs as JSON."""
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
