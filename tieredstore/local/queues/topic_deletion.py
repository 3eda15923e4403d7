"""Messages of DELETION_TOPIC, which record deletions of topics.

Format: `docs/formats/topic-deletion.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tieredstore.message.encoding import OwnMessage
from tieredstore.message.hashes import tags_code
from tieredstore.message.hosts import LOCALHOST
from tieredstore.message.names import DELETION_TOPIC
from tieredstore.message.properties import encode_properties, remove_property
from tieredstore.message.record import StoredMessage
from tieredstore.skipped_records import SkippedRecords

VERSION: Final = 1
QUEUES_PER_MESSAGE: Final = 1_000
"""Maximum number of queues in one message. A topic with more queues takes several messages."""
_NOT_IN_TAGS: Final = {1: "?", 2: "?"}


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """Deletion of a topic. `end_offsets`: queue offset after the last message, by queue id. A
    recreated topic continues at these offsets."""

    topic: str
    end_offsets: Mapping[int, int]

    def make_messages(self) -> list[OwnMessage]:
        """Return the messages that record the deletion, with up to QUEUES_PER_MESSAGE queues
        each."""
        ends = sorted(self.end_offsets.items())
        return [
            self._make_message(dict(ends[first : first + QUEUES_PER_MESSAGE]))
            for first in range(0, len(ends), QUEUES_PER_MESSAGE)
        ]

    def _make_message(self, ends: Mapping[int, int]) -> OwnMessage:
        queues = {str(queue_id): offset for queue_id, offset in ends.items()}
        body = orjson.dumps({"version": VERSION, "topic": self.topic, "queues": queues})
        properties = _make_properties(self.topic)
        return OwnMessage(DELETION_TOPIC, body, properties=properties)

    @classmethod
    def parse(
        cls, message: StoredMessage, skipped: SkippedRecords | None = None
    ) -> TopicDeletion | None:
        """Parse a message of DELETION_TOPIC. Returns None for a message that was not written by a
        tieredstore store. It has no effect and is counted in `skipped`. Later versions of the
        format may add members, which are ignored."""
        try:
            body: Any = orjson.loads(message.body)
            version, topic = body["version"], body["topic"]
            _check_writer(message, topic)
            if not isinstance(version, int) or version < VERSION:
                raise ValueError(f"expected version {VERSION} or a later one, found {version!r}")
            ends = {int(queue_id): offset for queue_id, offset in body["queues"].items()}
            if not all(_is_offset(number) for number in [*ends, *ends.values()]):
                raise ValueError("expected queue ids and offsets from 0 on")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"expected the deletion of a topic: {error}"
            if skipped is not None:
                skipped.note(DELETION_TOPIC, message.physical_offset, reason)
            return None
        return cls(topic, ends)


def _check_writer(message: StoredMessage, topic: object) -> None:
    """Raise ValueError for a message that was not written by a tieredstore store. A broker adds
    properties and an address to messages of clients. The store's own messages have neither."""
    if not isinstance(topic, str) or message.queue_id or message.born_timestamp_ms:
        raise ValueError("no store wrote it")
    properties = remove_property(message.properties_bytes, b"__CRC32#")
    if message.born_host_bytes != LOCALHOST or properties != _make_properties(topic):
        raise ValueError("a client wrote it")


def _is_offset(number: object) -> bool:
    return isinstance(number, int) and 0 <= number < 1 << 63


def deletion_tags_code(topic: str) -> int:
    """Return the tags code for units of messages that record deletions of a topic."""
    return tags_code(_tags_of(topic))


def _make_properties(topic: str) -> bytes:
    return encode_properties({"TAGS": _tags_of(topic)})


def _tags_of(topic: str) -> str:
    return topic.translate(_NOT_IN_TAGS)  # properties cannot hold this text
