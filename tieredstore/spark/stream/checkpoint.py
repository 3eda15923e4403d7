"""Offset of a stream, as JSON that Spark stores in the checkpoint and shows in the progress.

    {"@brokers": ["broker-a"], "@next": ["orders", "broker-a", 1], "orders": "112.x9Kf2 4.Ab3dE"}

The text of a topic lists its queues from queue 0 on. Each entry has the offset, and the mark of the
message before it, which distinguishes a recreated topic from the original. Other cases:

| text | means | |---|---| | `3=112` | the offset of queue 3, if the queue before it in the text is
not queue 2 | | `112+x9Kf2` | the mark of message 112 itself, because no message is before it | |
`112-4.x9Kf2` | the mark of message 108, because messages 109 to 111 could not be read | |
`112.x9Kf2<100` | the queue is new in this batch, which begins at the queue's offset 100 | | `#7` |
the queues after this text have topic id 7 in the metadata. `#`: the id is unknown | | `1/112.x9Kf2`
| queues of broker 1 of `@brokers`, counted from 0. `;` separates two brokers |

`@next` is the queue that the next batch reads first, if the limit of a batch left queues unread.
The format of older versions, objects by topic, broker and queue with `@incarnations` and `@begins`,
can still be read.
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
"""JSON keys of older versions: identities of queues, and start offsets of new queues."""
_WHAT = "the checkpoint's offset"
_MARK_BITS = 30
_MARK_CHARS = 5
_QUEUE = re.compile(r"(?:(\d+)=)?(\d+)(?:(-\d+\.|[.+])([A-Za-z0-9_-]{5}))?(?:<(\d+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Incarnation:
    """Identity of a queue, which changes when its topic is recreated. `topic_id`: the topic's id in
    the metadata. `message`: queue offset of one message at or before the stream's position. `mark`:
    30 bits computed from its store time, stored size and body CRC. `described`: these values as
    text for logs and errors, if the message was read. Unknown fields are None."""

    topic_id: int | None = None
    message: int | None = None
    mark: int | None = None
    described: str | None = field(default=None, compare=False)

    @classmethod
    def of_message(
        cls, topic_id: int | None, message: int, stored_ms: int, size: int, body_crc: int
    ) -> Incarnation:
        """Return the identity of a queue that has a message with the given values."""
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
        """Return whether two identities certainly belong to different queues: their topic ids
        differ, or their marks of the same message."""
        if None not in (self.topic_id, other.topic_id) and self.topic_id != other.topic_id:
            return True
        return self.message == other.message is not None and self.mark != other.mark


@dataclass(frozen=True, slots=True)
class Position:
    """Position in a queue: its offset, and the identity of the queue."""

    offset: int
    incarnation: Incarnation = field(default_factory=Incarnation)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Position of a stream. `begins`: start offsets of the queues that are new in the batch up to
    this position. `place`: queue that comes first in the next batch, or None for the first by
    name."""

    positions: Mapping[QueueKey, Position]
    begins: Mapping[QueueKey, int] = field(default_factory=dict)
    place: QueueKey | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that Spark writes. Equal offsets have equal JSON."""
        brokers = sorted({broker for _, broker, _ in self.positions})
        found: dict[str, object] = {BROKERS: brokers}
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
        """Parse the result of `to_json`, also from older versions. Raises Invalid."""
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
            if place is not None:
                topic, broker, queue_id = place
                place = str(topic), str(broker), int(queue_id)
            return cls(positions, begins, place)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise Invalid(f"{_WHAT}: not one that this version wrote ({error!r})") from error


def parse_starting_offsets(text: str, option: str) -> dict[QueueKey, int]:
    """Parse an option's JSON: offsets as users write them, or a stream's own offset. Raises
    Invalid."""
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
            whole = base64.urlsafe_b64decode(mark.ljust(8, "A"))
            bits = int.from_bytes(whole, "big") >> 18
            known = Incarnation(topic_id, offset - distance, bits)
        yield queue_id, Position(offset, known), None if begin is None else int(begin)


def _show_mark(mark: int) -> str:
    """Encode a mark as five characters of six bits each."""
    whole = base64.urlsafe_b64encode((mark << 18).to_bytes(6, "big")).decode()
    return whole[:_MARK_CHARS]


# Offsets of older versions


def _leaves(offset: Mapping[str, object]) -> list[tuple[QueueKey, int]]:
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
