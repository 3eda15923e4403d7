"""A stream's offset, as Spark keeps it in checkpoint and progress.

    {"@brokers": ["broker-a"], "@next": ["orders", "broker-a", 1], "orders": "112.x9Kf2 4.Ab3dE"}

A topic has its queues from 0 on, each with its offset and the mark of the message in front of it:
by that a topic that was made again is told from one that went on. What differs is written out:

| text | means |
|---|---|
| `3=112` | queue 3, where another one would follow |
| `112+x9Kf2` | the mark is of the message at the offset: there was none in front of it |
| `112-4.x9Kf2` | the mark is of the message 4 in front of it: those nearer could not be read |
| `112.x9Kf2<100` | the queue is new in this batch, which takes it from offset 100 on |
| `#7` | from here on the topic has the id 7 in the metadata; `#`: no id is known |
| `1/112.x9Kf2` | queues of broker 1 of `@brokers`, counted from 0; `;` is between two brokers |

`@next` is the queue that comes first when a limit does not reach for all. Older versions wrote
objects by topic, broker and queue, with `@incarnations` and `@begins` beside them: these are read.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tieredstore.errors import Invalid
from tieredstore.spark.offsets import QueueKey, leaves_of, parse_object, parse_offsets
from tieredstore.timestamps import format_time

BROKERS, NEXT = "@brokers", "@next"
INCARNATIONS, BEGINS = "@incarnations", "@begins"
"""Of older versions: what queues are known by, and where new ones begin."""
_WHAT = "the checkpoint's offset"
_MARK_BITS = 30
_MARK_CHARS = 5
_QUEUE = re.compile(r"(?:(\d+)=)?(\d+)(?:(-\d+\.|[.+])([A-Za-z0-9_-]{5}))?(?:<(\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Incarnation:
    """By what a queue is known again.

    topic_id: the topic's in the metadata. message: queue offset of a message in front of the
    position, or there. mark: 30 bits of its store time, stored size and body CRC. described: these,
    for people, where the message was read and not only its mark. None where unknown.
    """

    topic_id: int | None = None
    message: int | None = None
    mark: int | None = None
    described: str | None = field(default=None, compare=False)

    @classmethod
    def of_message(
        cls, topic_id: int | None, message: int, stored_ms: int, size: int, body_crc: int
    ) -> Incarnation:
        """Make that of a queue with this message."""
        mark = zlib.crc32(f"{stored_ms} {size} {body_crc}".encode()) & ((1 << _MARK_BITS) - 1)
        described = f"stored {format_time(stored_ms)} ({size} bytes, CRC {body_crc})"
        return cls(topic_id, message, mark, described)

    def __str__(self) -> str:
        parts = [] if self.topic_id is None else [f"topic id {self.topic_id}"]
        if self.message is not None and self.mark is not None:
            more = "" if self.described is None else f" {self.described}"
            parts.append(f"message {self.message} with the mark {_show_mark(self.mark)}{more}")
        return ", ".join(parts) or "nothing known of it"

    def contradicts(self, other: Incarnation) -> bool:
        """Tell whether both cannot be of one queue. What only one of them knows says nothing."""
        if None not in (self.topic_id, other.topic_id) and self.topic_id != other.topic_id:
            return True
        return self.message == other.message is not None and self.mark != other.mark


@dataclass(frozen=True, slots=True)
class Position:
    """A queue offset, and the queue that it was taken from."""

    offset: int
    incarnation: Incarnation = field(default_factory=Incarnation)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a stream is. begins: where the queues begin that the batch up to here has first.
    place: the queue that the next batch serves first; None for the first by name."""

    positions: Mapping[QueueKey, Position]
    begins: Mapping[QueueKey, int] = field(default_factory=dict)
    place: QueueKey | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes as JSON; equal offsets give equal names in the same order."""
        brokers = sorted({broker for _, broker, _ in self.positions})
        found: dict[str, Any] = {BROKERS: brokers}
        if self.place is not None:
            found[NEXT] = list(self.place)
        for topic, keys in groupby(sorted(self.positions), key=lambda key: key[0]):
            found[topic] = self._pack_topic(keys, brokers)
        return found

    def _pack_topic(self, keys: Iterable[QueueKey], brokers: list[str]) -> str:
        groups: list[str] = []
        expected = 0
        for broker, of_broker in groupby(keys, key=lambda key: key[1]):
            index = brokers.index(broker)
            text = " ".join(self._pack_queues(of_broker))
            groups.append(text if index == expected else f"{index}/{text}")
            expected = index + 1
        return ";".join(groups)

    def _pack_queues(self, keys: Iterable[QueueKey]) -> Iterator[str]:
        topic_id: int | None = None
        expected = 0
        for key in keys:
            position = self.positions[key]
            known = position.incarnation
            if known.topic_id != topic_id:
                topic_id = known.topic_id
                yield "#" if topic_id is None else f"#{topic_id}"
            name = "" if key[2] == expected else f"{key[2]}="
            expected = key[2] + 1
            mark = ""
            if known.mark is not None and known.message is not None:
                distance = position.offset - known.message
                sign = {0: "+", 1: "."}.get(distance, f"-{distance}.")
                mark = sign + _show_mark(known.mark) if distance >= 0 else ""
            begin = f"<{self.begins[key]}" if key in self.begins else ""
            yield f"{name}{position.offset}{mark}{begin}"

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> StreamOffset:
        """Make it of what `to_json` gave, now or in an older version. Raises Invalid for others."""
        if BROKERS not in offset:
            return cls(_read_old_positions(offset), dict(_leaves(offset.get(BEGINS, {}))))
        brokers, place = offset[BROKERS], offset.get(NEXT)
        positions: dict[QueueKey, Position] = {}
        begins: dict[QueueKey, int] = {}
        try:
            for topic, text in offset.items():
                if topic not in {BROKERS, NEXT}:
                    for broker, words in _split_brokers(text, brokers):
                        for queue_id, position, begin in _read_queues(words):
                            key = topic, broker, queue_id
                            positions[key] = position
                            if begin is not None:
                                begins[key] = begin
            return cls(positions, begins, None if place is None else _queue_key(place))
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise Invalid(f"{_WHAT}: not one that this version wrote ({error!r})") from error


def parse_starting_offsets(text: str, option: str) -> dict[QueueKey, int]:
    """Parse an option's JSON: as users write it, or a stream's own offset. Raises Invalid."""
    found = parse_object(text, option)
    if BROKERS not in found and INCARNATIONS not in found:
        return parse_offsets(text, option)
    positions = StreamOffset.from_json(found).positions
    return {key: position.offset for key, position in positions.items()}


def _split_brokers(text: str, brokers: list[str]) -> Iterator[tuple[str, list[str]]]:
    expected = 0
    for group in text.split(";"):
        index, slash, words = group.rpartition("/")
        number = int(index) if slash else expected
        expected = number + 1
        yield brokers[number], words.split(" ")


def _read_queues(words: Iterable[str]) -> Iterator[tuple[int, Position, int | None]]:
    topic_id: int | None = None
    expected = 0
    for word in words:
        if word.startswith("#"):
            topic_id = int(word[1:]) if word[1:] else None
            continue
        found = _QUEUE.fullmatch(word)
        if found is None:
            raise ValueError(f"not a queue: {word!r}")
        name, offset_text, sign, mark, begin = found.groups()
        queue_id = expected if name is None else int(name)
        expected = queue_id + 1
        offset = int(offset_text)
        known = Incarnation(topic_id)
        if mark is not None:
            distance = {"+": 0, ".": 1}[sign] if len(sign) == 1 else int(sign[1:-1])
            known = Incarnation(topic_id, offset - distance, _read_mark(mark))
        yield queue_id, Position(offset, known), None if begin is None else int(begin)


def _queue_key(place: list[Any]) -> QueueKey:
    topic, broker, queue_id = place
    return str(topic), str(broker), int(queue_id)


def _show_mark(mark: int) -> str:
    """Five characters of six bits each."""
    whole = base64.urlsafe_b64encode((mark << 18).to_bytes(6, "big")).decode()
    return whole[:_MARK_CHARS]


def _read_mark(text: str) -> int:
    whole = base64.urlsafe_b64decode(text.ljust(8, "A"))
    return int.from_bytes(whole, "big") >> 18


# Offsets of older versions


def _leaves(offset: Mapping[str, Any]) -> list[tuple[QueueKey, int]]:
    return leaves_of(offset, _WHAT, besides=(INCARNATIONS, BEGINS))


def _read_old_positions(offset: Mapping[str, Any]) -> dict[QueueKey, Position]:
    known = offset.get(INCARNATIONS, {})
    try:
        return {
            (topic, broker, queue_id): Position(
                number,
                _read_old_incarnation(known.get(topic, {}).get(broker, {}).get(str(queue_id), {})),
            )
            for (topic, broker, queue_id), number in _leaves(offset)
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise Invalid(f"{_WHAT}: {INCARNATIONS}: {error!r}: {json.dumps(known)[:200]}") from error


def _read_old_incarnation(found: Mapping[str, Any]) -> Incarnation:
    numbers = {name: None if value is None else int(value) for name, value in found.items()}
    parts = [numbers.get(name) for name in ("message", "stored_ms", "size", "body_crc")]
    message, stored_ms, size, body_crc = parts
    if message is None or stored_ms is None or size is None or body_crc is None:
        return Incarnation(numbers.get("topic_id"))
    return Incarnation.of_message(numbers.get("topic_id"), message, stored_ms, size, body_crc)
