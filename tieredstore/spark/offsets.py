"""Offsets of queues as Spark keeps them and as users write them: JSON by topic, broker and queue.

    {"orders": {"broker-a": {"0": 112, "1": 4}}}

A stream's own have one key more, which no topic can be named: what each queue was when its offset
was taken, so that a topic that was made again is told from one that went on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from tieredstore.errors import Invalid

QueueKey: TypeAlias = tuple[str, str, int]
"""Topic, broker, queue id."""
EARLIEST, LATEST = -2, -1
"""What these numbers mean in place of an offset, in startingOffsets and endingOffsets."""
INCARNATIONS = "@incarnations"
BEGINS = "@begins"
"""Where queues begin that are new in a batch: its start does not have them."""


class Incarnation(msgspec.Struct, frozen=True, omit_defaults=True):
    """By what a queue is known again.

    topic_id: the topic's in the metadata. message: queue offset of a message at the position (in
    front of it, or behind), with its store time, stored size and body CRC. None where unknown.
    """

    topic_id: int | None = None
    message: int | None = None
    stored_ms: int | None = None
    size: int | None = None
    body_crc: int | None = None

    def __str__(self) -> str:
        parts = [] if self.topic_id is None else [f"topic id {self.topic_id}"]
        if self.message is not None and self.stored_ms is not None:
            moment = datetime.fromtimestamp(self.stored_ms / 1000, UTC)
            stored = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            parts.append(
                f"message {self.message} stored {stored} ({self.size} bytes, CRC {self.body_crc})"
            )
        return ", ".join(parts) or "nothing known of it"

    def contradicts(self, other: Incarnation) -> bool:
        """Tell whether both cannot be of one queue. What only one of them knows says nothing."""
        if None not in (self.topic_id, other.topic_id) and self.topic_id != other.topic_id:
            return True
        return self.message == other.message is not None and (
            (self.stored_ms, self.size, self.body_crc)
            != (other.stored_ms, other.size, other.body_crc)
        )


@dataclass(frozen=True, slots=True)
class Position:
    """A queue offset, and the queue that it was taken from."""

    offset: int
    incarnation: Incarnation = field(default_factory=Incarnation)


def show_queue(key: QueueKey) -> str:
    """Name a queue in messages to people, as the tier's paths have it."""
    topic, broker, queue_id = key
    return f"{broker}/{topic}/{queue_id}"


def to_json(
    positions: Mapping[QueueKey, Position], begins: Mapping[QueueKey, int] | None = None
) -> dict[str, Any]:
    """Return a stream's offset; the same positions give the same JSON names in the same order."""
    offsets: dict[str, Any] = {}
    incarnations: dict[str, Any] = {}
    for (topic, broker, queue_id), position in sorted(positions.items()):
        offsets.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = position.offset
        known = incarnations.setdefault(topic, {}).setdefault(broker, {})
        known[str(queue_id)] = msgspec.to_builtins(position.incarnation)
    new: dict[str, Any] = {}
    for (topic, broker, queue_id), first in sorted((begins or {}).items()):
        new.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = first
    return {**offsets, INCARNATIONS: incarnations, **({BEGINS: new} if new else {})}


def begins_of(offset: Mapping[str, Any]) -> dict[QueueKey, int]:
    """Return where the queues begin that the batch up to this offset has first."""
    return dict(_leaves(offset.get(BEGINS, {}), "the checkpoint's offset"))


def from_json(offset: Mapping[str, Any]) -> dict[QueueKey, Position]:
    """Return the positions that `to_json` was given. Raises Invalid for what `to_json` did not
    make."""
    known = offset.get(INCARNATIONS, {})
    try:
        return {
            (topic, broker, queue_id): Position(
                number,
                msgspec.convert(
                    known.get(topic, {}).get(broker, {}).get(str(queue_id), {}), Incarnation
                ),
            )
            for (topic, broker, queue_id), number in _leaves(offset, "the checkpoint's offset")
        }
    except (msgspec.ValidationError, AttributeError) as error:
        raise Invalid(f"the checkpoint's offset: {INCARNATIONS}: {error}") from error


def parse_offsets(text: str, option: str) -> dict[QueueKey, int]:
    """Parse an option's JSON; -2 stands for earliest, -1 for latest. Raises Invalid."""
    found = dict(_leaves(_object(text, option), option))
    for key, offset in found.items():
        if offset < EARLIEST:
            raise Invalid(
                f"{option}: {show_queue(key)}: expected an offset, -2 for earliest or -1 for "
                f"latest, "
                f"found {offset}"
            )
    return found


def parse_assigned(text: str) -> frozenset[QueueKey]:
    """Parse the option `assign`: {topic: {broker: [queue ids]}}. Raises Invalid."""
    found: set[QueueKey] = set()
    for topic, brokers in _object(text, "assign").items():
        for broker, queue_ids in _require_object(brokers, "assign", topic).items():
            if not isinstance(queue_ids, list) or not all(map(_is_number, queue_ids)):
                raise Invalid(
                    f"assign: {topic}: {broker}: expected a list of queue ids, found {queue_ids!r}"
                )
            found.update((topic, broker, queue_id) for queue_id in queue_ids)
    if not found:
        raise Invalid("assign: expected at least one queue, found none")
    return frozenset(found)


def _object(text: str, option: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Invalid(f"{option}: not JSON ({error}): {text!r}") from None
    if not isinstance(found, dict):
        raise Invalid(f"{option}: expected a JSON object by topic, found {text!r}")
    return found


def _leaves(offset: Mapping[str, Any], option: str) -> list[tuple[QueueKey, int]]:
    return [
        ((topic, broker, _queue_id(queue_id, option, topic, broker)), number)
        for topic, brokers in offset.items()
        if topic not in {INCARNATIONS, BEGINS}
        for broker, queues in _require_object(brokers, option, topic).items()
        for queue_id, number in _require_object(queues, option, topic, broker).items()
        if _is_offset(number, option, topic, broker, queue_id)
    ]


def _require_object(value: object, option: str, *place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        wanted = "brokers" if len(place) == 1 else "queues"
        raise Invalid(
            f"{option}: {': '.join(place)}: expected an object by {wanted}, as in "
            f'{{"topic": {{"broker": {{"0": 42}}}}}}, found {value!r}'
        )
    return value


def _queue_id(text: str, option: str, topic: str, broker: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise Invalid(f"{option}: {topic}: {broker}: expected a queue id, found {text!r}")
    return int(text)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_offset(value: object, option: str, *place: str) -> bool:
    if not _is_number(value):
        raise Invalid(f"{option}: {': '.join(place)}: expected an offset, found {value!r}")
    return True
