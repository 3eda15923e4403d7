"""`ConsumerOffsetManager`: how far each group has consumed each queue, in
`config/consumerOffset.json`, or where Java has it with `enableLmq`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from tieredstore.broker.state.config_manager import ConfigManager, DataVersion
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.message.names import LMQ_PREFIX

_SEPARATOR: Final = "@"


class _Table(msgspec.Struct, kw_only=True, rename="camel"):
    offset_table: dict[str, dict[int, int]]
    pull_offset_table: dict[str, dict[int, int]] = {}
    lmq_offset_table: dict[str, int] = {}
    data_version: DataVersion | None = None


class ConsumerOffsetManager(ConfigManager):
    """Offsets by group, topic and queue: each is the offset of the next message to consume.

    has_lmq: whether light message queues are on (`enableLmq`). Java has all offsets in a file of
    another name then, those of light queues, which have one queue each, in a table of their own.
    """

    def __init__(
        self, config_folder: Path, clock: Clock = SYSTEM_CLOCK, *, has_lmq: bool = False
    ) -> None:
        name = "lmqConsumerOffset.json" if has_lmq else "consumerOffset.json"
        super().__init__(config_folder / name, clock)
        self._has_lmq = has_lmq
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self._pull_offsets: dict[str, dict[int, int]] = {}  # Java's, passed on

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note an offset; a lower one than before counts too."""
        queues = self._offsets.setdefault((group, topic), {})
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self.mark_changed(is_new_version=False)

    def query_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset; None when there is none."""
        queues = self._offsets.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def list_offsets(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets of a group by queue id."""
        return MappingProxyType(self._offsets.get((group, topic), {}))

    def list_keys(self) -> list[tuple[str, str]]:
        """List each (group, topic) of which there are offsets."""
        return list(self._offsets)

    def list_topics(self, group: str) -> set[str]:
        """List the topics of which a group has consumed."""
        return {topic for known, topic in self._offsets if known == group}

    def list_groups(self, topic: str) -> set[str]:
        """List the groups that have consumed of a topic."""
        return {group for group, known in self._offsets if known == topic}

    def remove_topic(self, topic: str) -> None:
        """Forget all offsets of a topic."""
        self._remove([key for key in self._offsets if key[1] == topic])

    def remove_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        self._remove([key for key in self._offsets if key[0] == group])

    def encode(self) -> bytes:
        table = _Table(
            offset_table={},
            pull_offset_table=self._pull_offsets,
            data_version=self.data_version,
        )
        for (group, topic), queues in self._offsets.items():
            key = f"{topic}{_SEPARATOR}{group}"
            if self._has_lmq and topic.startswith(LMQ_PREFIX) and queues.keys() == {0}:
                table.lmq_offset_table[key] = queues[0]
            else:
                table.offset_table[key] = queues
        return msgspec.json.format(msgspec.json.encode(table), indent=1)

    def decode(self, data: bytes) -> None:
        table = msgspec.json.decode(data, type=_Table)
        offsets: dict[tuple[str, str], dict[int, int]] = {}
        lmq = {key: {0: offset} for key, offset in table.lmq_offset_table.items()}
        for key, queues in (lmq | table.offset_table).items():
            topic, separator, group = key.partition(_SEPARATOR)
            if not separator:
                raise ValueError(f"offsetTable: expected topic@group, found {key!r}")
            offsets[group, topic] = queues
        self._offsets = offsets
        self._pull_offsets = table.pull_offset_table
        self.data_version = table.data_version or DataVersion()

    def _remove(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self._offsets[key]
        if keys:
            self.mark_changed()
