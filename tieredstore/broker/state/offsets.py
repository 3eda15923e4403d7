"""`ConsumerOffsetManager`: consumer offsets of groups, in `config/consumerOffset.json`. With
`enableLmq` they are in `lmqConsumerOffset.json`, as in Java."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from tieredstore.broker.state.config_manager import ConfigManager, DataVersion
from tieredstore.broker.state.groups import is_own_group
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.dispatch_source import DispatchSource, HistorySource, QueueKey
from tieredstore.contracts.message_store import MessageStore
from tieredstore.errors import Busy, Corrupt, Invalid
from tieredstore.message.names import LMQ_PREFIX

MAX_ENTRIES: Final = 1_000_000
"""Maximum number of (group, topic) pairs that clients can add. A pair takes about 500 bytes of
memory."""
_SEPARATOR: Final = "@"
_NAMED: Final = 10
_NEWER_MS: Final = 60_000
"""Minimum difference between the times of two files for one to count as newer, in ms. Files copied
together have nearly the same time."""
_log = logging.getLogger(__name__)


def find_next_offset(store: MessageStore, topic: str, queue_id: int) -> int:
    """Return the offset of the next message of a queue. Raises Corrupt."""
    end = store.get_max_offset_in_queue(topic, queue_id)
    source = store.dispatch_source
    if isinstance(source, HistorySource):  # It knows the ends of queues without messages, too.
        end = max(end, source.find_next_offset(QueueKey(topic, queue_id)))
    return end


def has_first_message(source: DispatchSource, topic: str, queue_id: int, first: int = 0) -> bool:
    """Return whether the local log still has the first message of a queue (queue offset `first`).
    If so, a group without a consumer offset starts there, as in Java. The tier and the page cache
    do not count, because the result would change with their content."""
    return source.is_in_store(QueueKey(topic, queue_id), first)


class _Table(msgspec.Struct, kw_only=True, rename="camel"):
    offset_table: dict[str, dict[int, int]]
    pull_offset_table: dict[str, dict[int, int]] = {}
    lmq_offset_table: dict[str, int] = {}
    data_version: DataVersion | None = None


class ConsumerOffsetManager(ConfigManager):
    """Consumer offsets by group, topic and queue. Each is the queue offset of the next message to
    consume. `has_lmq`: True if light queues are enabled (`enableLmq`). All offsets are then in
    another file, as in Java. Offsets of light queues, which have a single queue each, are in a
    table of their own."""

    def __init__(
        self, config_folder: Path, clock: Clock = SYSTEM_CLOCK, *, has_lmq: bool = False
    ) -> None:
        name, other = "lmqConsumerOffset.json", "consumerOffset.json"
        name, other = (name, other) if has_lmq else (other, name)
        super().__init__(config_folder / name, clock)
        self._other = config_folder / other
        self._has_lmq = has_lmq
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self._pull_offsets: dict[str, dict[int, int]] = {}  # Java's, kept unchanged

    async def load(self) -> None:
        """Read the file like `ConfigManager.load`. After a change of `enableLmq`, read the other
        file."""
        own = self.path
        if await asyncio.to_thread(self._is_other_newer):
            _log.warning("%s: enableLmq was changed: %s is used", own, self._other.name)
            self.path = self._other
            self._changes += 1
        try:
            await super().load()
        finally:
            self.path = own

    def _is_other_newer(self) -> bool:
        return _find_modified_ms(self._other) - _find_modified_ms(self.path) > _NEWER_MS

    def commit_offset(
        self, group: str, topic: str, queue_id: int, offset: int, *, is_own: bool = False
    ) -> None:
        """Set a consumer offset, even to a lower value. `is_own`: True if called by the broker,
        which alone sets the offsets of its own groups."""
        if not is_own and is_own_group(group):
            return
        queues = self._offsets.setdefault((group, topic), {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self.mark_changed(is_new_version=False)

    def lower_to_ends(self, find_end: Callable[[str, int], int]) -> None:
        """Lower consumer offsets that are beyond the end of their queue, so that the next messages
        count as new. The log has then lost messages in a power failure, or is an older copy. The
        broker's own groups are not changed. `find_end`: returns the next offset of a queue, or
        raises Corrupt if the queue cannot be read."""
        lowered = []
        for (group, topic), queues in self._offsets.items():
            if is_own_group(group):
                continue
            for queue_id, offset in queues.items():
                try:
                    end = find_end(topic, queue_id)
                except Corrupt as error:
                    _log.warning("the offsets of its groups are kept: %s", error)
                    continue
                if offset > end:
                    queues[queue_id] = end
                    lowered.append(f"group {group}, {topic}/{queue_id}: {offset} to {end}")
        if lowered:
            self.mark_changed(is_new_version=False)
            _log.warning(
                "%d offsets of groups were after the ends of their queues, whose log has lost "
                "messages. They are lowered, so that new messages are delivered (%s%s)",
                len(lowered),
                "; ".join(lowered[:_NAMED]),
                "; …" if lowered[_NAMED:] else "",
            )

    def check_room(self, group: str, topic: str) -> None:
        """Raise Busy if a client's request would add a pair of group and topic above MAX_ENTRIES.
        Raises Invalid if the file would store the offset under another pair."""
        if _SEPARATOR in topic + group and _split_key(f"{topic}@{group}") != (group, topic):
            raise Invalid(f"group {group}, topic {topic}: expected names without {_SEPARATOR}")
        if len(self._offsets) >= MAX_ENTRIES and (group, topic) not in self._offsets:
            raise Busy(
                f"group {group}, topic {topic}: there are offsets of {MAX_ENTRIES} groups and "
                "topics, the offset is not stored. Delete groups or topics",
                topic=topic,
            )

    def query_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a consumer offset, or None if none is stored."""
        queues = self._offsets.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def list_offsets(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the consumer offsets of a group in a topic, by queue id."""
        return MappingProxyType(self._offsets.get((group, topic), {}))

    def list_keys(self) -> list[tuple[str, str]]:
        """Return each (group, topic) with consumer offsets."""
        return list(self._offsets)

    def list_topics(self, group: str) -> set[str]:
        return {topic for known, topic in self._offsets if known == group}

    def list_groups(self, topic: str) -> set[str]:
        return {group for group, known in self._offsets if known == topic}

    def remove_topic(self, topic: str) -> None:
        self.remove_topics((topic,))

    def remove_topics(self, topics: Collection[str]) -> None:
        wanted = frozenset(topics)
        self._remove([key for key in self._offsets if key[1] in wanted])

    def remove_group(self, group: str) -> None:
        self._remove([key for key in self._offsets if key[0] == group])

    def list_fields(self) -> dict[str, object]:
        copied = self._offsets.copy()
        return {
            "offsetTable": self._list_rows(copied, is_lmq=False),
            "pullOffsetTable": self._pull_offsets,
            "lmqOffsetTable": self._list_rows(copied, is_lmq=True),
            "dataVersion": self.data_version,
        }

    def decode(self, data: bytes) -> None:
        table = msgspec.json.decode(data, type=_Table)
        offsets: dict[tuple[str, str], dict[int, int]] = {}
        lmq = {key: {0: offset} for key, offset in table.lmq_offset_table.items()}
        for key, queues in (lmq | table.offset_table).items():
            offsets[_split_key(key)] = queues
        self._offsets = offsets
        self._pull_offsets = table.pull_offset_table
        self.data_version = table.data_version or DataVersion()

    def _list_rows(
        self, table: Mapping[tuple[str, str], dict[int, int]], *, is_lmq: bool
    ) -> Iterator[tuple[str, object]]:
        for (group, topic), queues in table.items():
            is_light = self._has_lmq and topic.startswith(LMQ_PREFIX) and queues.keys() == {0}
            if is_light == is_lmq:
                yield f"{topic}{_SEPARATOR}{group}", queues[0] if is_lmq else queues

    def _remove(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self._offsets[key]
        if keys:
            self.mark_changed()


def _find_modified_ms(path: Path) -> int:
    """Return the modification time of a file or its backup, whichever is later (epoch ms), or 0 if
    neither exists."""
    found = (path, path.with_name(f"{path.name}.bak"))
    return max((one.stat().st_mtime_ns // 1_000_000 for one in found if one.exists()), default=0)


def _split_key(key: str) -> tuple[str, str]:
    """Split a key `topic@group`. Only names of light queues and their groups contain an @, for
    example those of MQTT clients. A group of a light queue may also start with the prefix of light
    queues."""
    separator = key.rfind(_SEPARATOR + LMQ_PREFIX)
    if separator < 0:
        find = key.rfind if key.startswith(LMQ_PREFIX) else key.find
        separator = find(_SEPARATOR)
    if separator < 0:
        raise ValueError(f"offsetTable: expected topic@group, found {key!r}")
    return key[separator + 1 :], key[:separator]
