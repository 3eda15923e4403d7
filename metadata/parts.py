"""The tables of the metadata JSON in parts, so that what changes little is encoded little.

A file of 200,000 segments takes half a second to encode. So each table is cut into parts of some
hundred names, and a part keeps its JSON until something in it changes. What is to be encoded is
captured under the store's lock, which readers need, and encoded without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import orjson

from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    QueueMetadata,
    TopicMetadata,
)

PART_NAMES: Final = 256
"""Topics, or paths of segments, that are encoded together."""
TABLE_BUCKETS: Final = 128
"""Dicts that the names of a table are spread over."""

Extra: TypeAlias = dict[str, orjson.Fragment]
"""Fields that this version does not know, encoded, to be written back as they were."""
Entry: TypeAlias = TopicMetadata | QueueMetadata | FileSegmentMetadata
CapturedRow: TypeAlias = tuple[Entry, Extra | None]
Captured: TypeAlias = CapturedRow | list[tuple[str, CapturedRow]]
"""A row, or the rows of a group by number."""

T = TypeVar("T", TopicMetadata, QueueMetadata, FileSegmentMetadata)


class Content(Protocol):
    """What a name of a table stands for."""

    part: Part[Any] | None

    def capture(self) -> Captured:
        """Note what is there now."""
        ...


C = TypeVar("C", bound=Content)


class Row(Generic[T]):
    """One entry. Assign `value` anew after changing it: what was assigned stays as it is. version:
    the store's, of the last change that must be on disk before its call returns."""

    __slots__ = ("_extra", "_value", "part", "version")

    def __init__(self, value: T, extra: Extra | None = None) -> None:
        self._value: T = value
        self._extra = extra
        self.part: Part[Any] | None = None
        self.version = 0

    @property
    def value(self) -> T:
        return self._value

    @value.setter
    def value(self, value: T) -> None:
        self._value = value
        if self.part is not None:
            self.part.touch()

    def capture(self) -> CapturedRow:
        return self._value, self._extra


class Group(dict[int, Row[T]]):
    """The rows of one name by number: the segments of a path, the queues of a topic."""

    __slots__ = ("part",)

    def __init__(self) -> None:
        super().__init__()
        self.part: Part[Any] | None = None

    def put(self, number: int, row: Row[T]) -> Row[T]:
        """Add a row, or replace one."""
        self[number] = row
        row.part = self.part
        self._touch()
        return row

    def take(self, number: int) -> bool:
        """Remove a row; tell whether it was there."""
        if self.pop(number, None) is None:
            return False
        self._touch()
        return True

    def _touch(self) -> None:
        if self.part is not None:
            self.part.touch()

    def capture(self) -> list[tuple[str, CapturedRow]]:
        return [(str(number), row.capture()) for number, row in self.items()]


class Part(Generic[C]):
    """Some names of a table, in order. Not thread-safe."""

    __slots__ = ("encoded", "names", "version")

    def __init__(self) -> None:
        self.names: dict[str, C] = {}
        self.encoded: bytes | None = None
        self.version = 0

    def touch(self) -> None:
        """Note that something in it has changed."""
        self.encoded = None
        self.version += 1


class CapturedPart:
    """What a part held at a moment. `encode` needs no lock."""

    __slots__ = ("_contents", "_part", "_version", "encoded")

    def __init__(self, part: Part[Any]) -> None:
        self._part = part
        self._version = part.version
        self._contents: list[tuple[str, Captured]] | None = None
        self.encoded = part.encoded
        if self.encoded is None:
            self._contents = [(name, content.capture()) for name, content in part.names.items()]

    def encode(self) -> bytes:
        """Return the names with their contents as JSON, without the braces of an object."""
        if self.encoded is None:
            assert self._contents is not None
            self.encoded = orjson.dumps(
                {
                    name: {number: _fields(*row) for number, row in content}
                    if isinstance(content, list)
                    else _fields(*content)
                    for name, content in self._contents
                }
            )[1:-1]
            self._contents = None
        return self.encoded

    def keep(self) -> None:
        """Let the part keep its JSON, unless it has changed since."""
        if self._part.version == self._version:
            self._part.encoded = self.encoded


class Table(Generic[C]):
    """A table by name, in the order of its parts. Not thread-safe.

    A dict of 100,000 names takes milliseconds to grow, under the lock that readers need: so the
    names are spread over many dicts.
    """

    __slots__ = ("_buckets", "parts")

    def __init__(self) -> None:
        self._buckets: tuple[dict[str, C], ...] = tuple({} for _ in range(TABLE_BUCKETS))
        self.parts: list[Part[C]] = []

    def get(self, name: str) -> C | None:
        return self._buckets[hash(name) % TABLE_BUCKETS].get(name)

    def __getitem__(self, name: str) -> C:
        return self._buckets[hash(name) % TABLE_BUCKETS][name]

    def __contains__(self, name: str) -> bool:
        return name in self._buckets[hash(name) % TABLE_BUCKETS]

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def items(self) -> Iterator[tuple[str, C]]:
        """Yield each name with its content; the table must not change meanwhile."""
        for part in self.parts:
            yield from part.names.items()

    def add(self, name: str, content: C) -> C:
        """Add a name that is not there."""
        if not self.parts or len(self.parts[-1].names) >= PART_NAMES:
            self.parts.append(Part())
        part = self.parts[-1]
        self._buckets[hash(name) % TABLE_BUCKETS][name] = part.names[name] = content
        content.part = part
        part.touch()
        return content

    def remove(self, name: str) -> bool:
        """Remove a name; tell whether it was there."""
        content = self._buckets[hash(name) % TABLE_BUCKETS].pop(name, None)
        if content is None:
            return False
        part = content.part
        assert part is not None
        content.part = None
        del part.names[name]
        part.touch()
        if not part.names:
            self.parts.remove(part)
        return True

    def capture(self) -> list[CapturedPart]:
        """Note what is in it now."""
        return [CapturedPart(part) for part in self.parts]


def _fields(value: Entry, extra: Extra | None) -> dict[str, object]:
    """Java's field names, in its order."""
    fields: dict[str, object]
    if isinstance(value, FileSegmentMetadata):
        fields = {
            "path": value.path,
            "type": int(value.type),
            "baseOffset": value.base_offset,
            "status": value.status,
            "size": value.size,
            "createTimestamp": value.create_timestamp_ms,
            "beginTimestamp": value.begin_timestamp_ms,
            "endTimestamp": value.end_timestamp_ms,
            "sealTimestamp": value.seal_timestamp_ms,
        }
    elif isinstance(value, QueueMetadata):
        fields = {
            "queue": {
                "brokerName": value.broker_name,
                "queueId": value.queue_id,
                "topic": value.topic,
            },
            "minOffset": value.min_offset,
            "maxOffset": value.max_offset,
            "updateTimestamp": value.update_timestamp_ms,
        }
    else:
        fields = {
            "topicId": value.topic_id,
            "topic": value.topic,
            "status": value.status,
            "reserveTime": value.reserve_time_hours,
            "updateTimestamp": value.update_timestamp_ms,
        }
    if extra:
        fields.update(extra)
    return fields
