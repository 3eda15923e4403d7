"""What the store knows about topics: legal names, delay levels and `config/topics.json`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from tieredstore.disk.errors import translate_os_error
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.names import RETRY_PREFIX, find_name_fault

MAX_TOPIC_BYTES: Final = 127
MAX_RETRY_TOPIC_BYTES: Final = 255
MAX_QUEUE_ID: Final = 65_535

_DELAY: Final = re.compile(r"(\d+)([smhd])")
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BARE_KEY: Final = re.compile(rb'("(?:[^"\\]|\\.)*")|([{,]\s*)(-?\d+)(?=\s*:)')


def illegal_topic(topic: str, queue_id: int) -> str | None:
    """Tell why nothing may be put in this queue; None when all is well.

    The lengths are RocketMQ's. A topic is a folder's name, in the store and in a tier.
    """
    try:
        length = len(topic.encode())
    except UnicodeEncodeError:
        return f"topic {topic!r}: expected text"
    limit = MAX_RETRY_TOPIC_BYTES if topic.startswith(RETRY_PREFIX) else MAX_TOPIC_BYTES
    if not 0 < length <= limit:
        return f"topic: expected 1 to {limit} bytes, found {length}"
    fault = find_name_fault(topic)
    if fault is not None:
        return f"topic {topic!r}: expected a name that can be a folder's: it {fault}"
    if not 0 <= queue_id <= MAX_QUEUE_ID:
        return f"queue id: expected 0 to {MAX_QUEUE_ID}, found {queue_id}"
    return None


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Parse the delays in ms of `messageDelayLevel`, level 1 first. Raises Invalid."""
    delays = []
    for word in text.split():
        match = _DELAY.fullmatch(word)
        if match is None:
            raise Invalid(f"messageDelayLevel: expected a number with s, m, h or d, found {word!r}")
        delays.append(int(match[1]) * _UNITS_MS[match[2]])
    return tuple(delays)


@dataclass(frozen=True, slots=True)
class TopicTable:
    """Attributes of the topics of a broker: `queue.type`, `cleanup.policy`, `reserve.time`, …"""

    attributes: dict[str, dict[str, str]] = field(default_factory=dict)

    def is_compaction(self, topic: str) -> bool:
        """Tell whether only the last message of each key is kept, in files of their own."""
        return self._attribute(topic, "cleanup.policy").upper() == "COMPACTION"

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
    """Read `config/topics.json`, an empty table without one. Raises Corrupt when it cannot be
    parsed."""
    path = root / "config" / "topics.json"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return TopicTable()
    except OSError as error:
        raise translate_os_error(error, "read", path) from error
    # fastjson writes integer keys without quotes.
    strict = _BARE_KEY.sub(lambda m: m[1] or m[2] + b'"' + m[3] + b'"', data)
    try:
        table: dict[str, Any] = orjson.loads(strict)["topicConfigTable"]
        return TopicTable(
            {topic: dict(config.get("attributes") or {}) for topic, config in table.items()}
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise Corrupt(
            f"{path}: expected JSON with a topicConfigTable: {error}", path=str(path)
        ) from None
