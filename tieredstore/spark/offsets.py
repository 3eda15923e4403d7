"""Offsets of queues as users write them: JSON by topic, broker and queue, such as {"orders":
{"broker-a": {"0": 112, "1": 4}}}. The offsets of a stream's checkpoint are in
`tieredstore.spark.stream.checkpoint`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tieredstore.errors import Invalid

QueueKey: TypeAlias = tuple[str, str, int]
"""Key of a queue: topic, broker, queue id."""
EARLIEST, LATEST = -2, -1
"""Values of startingOffsets and endingOffsets for the earliest and the latest offset."""


def show_queue(key: QueueKey) -> str:
    """Return the name of a queue for messages, in the form of the tier's paths."""
    topic, broker, queue_id = key
    return f"{broker}/{topic}/{queue_id}"


def parse_offsets(text: str, option: str) -> dict[QueueKey, int]:
    """Parse an option's JSON. -2 means earliest, -1 latest. Raises Invalid."""
    found = dict(leaves_of(parse_object(text, option), option))
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
    for topic, brokers in parse_object(text, "assign").items():
        for broker, queue_ids in _require_object(brokers, "assign", topic).items():
            if not isinstance(queue_ids, list) or not all(map(_is_number, queue_ids)):
                raise Invalid(
                    f"assign: {topic}: {broker}: expected a list of queue ids, found {queue_ids!r}"
                )
            found.update((topic, broker, queue_id) for queue_id in queue_ids)
    if not found:
        raise Invalid("assign: expected at least one queue, found none")
    return frozenset(found)


def parse_object(text: str, option: str) -> dict[str, object]:
    """Parse a JSON object by topic. Raises Invalid."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Invalid(f"{option}: not JSON ({error}): {text!r}") from None
    if not isinstance(found, dict):
        raise Invalid(f"{option}: expected a JSON object by topic, found {text!r}")
    return found


def leaves_of(
    offset: Mapping[str, object], option: str, besides: Sequence[str] = ()
) -> list[tuple[QueueKey, int]]:
    """Return the number of each queue in an object {topic: {broker: {queue id: number}}}.
    `besides`: keys of the object that are not topics. Raises Invalid for other content."""
    return [
        ((topic, broker, int(queue_id)), number)
        for topic, brokers in offset.items()
        if topic not in besides
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


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_offset(value: object, option: str, topic: str, broker: str, queue_id: str) -> bool:
    if not (queue_id.isascii() and queue_id.isdecimal()):
        raise Invalid(f"{option}: {topic}: {broker}: expected a queue id, found {queue_id!r}")
    if not _is_number(value):
        place = f"{topic}: {broker}: {queue_id}"
        raise Invalid(f"{option}: {place}: expected an offset, found {value!r}")
    return True
