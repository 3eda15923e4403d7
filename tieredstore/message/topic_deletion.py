"""The messages of DELETION_TOPIC, which say that a topic was deleted.

Format: `docs/formats/topic-deletion.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tieredstore.errors import Corrupt
from tieredstore.message.encoding import Message
from tieredstore.message.hashes import tags_code
from tieredstore.message.names import DELETION_TOPIC
from tieredstore.message.record import StoredMessage

VERSION: Final = 1
QUEUES_PER_MESSAGE: Final = 1_000
"""Most queues that one message names: a topic with more of them takes several."""
_NOT_IN_TAGS: Final = {1: "?", 2: "?"}


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """The end of a topic's life. end_offsets: queue offset behind the last message of each queue,
    by queue id; a topic of this name that is made again goes on there."""

    topic: str
    end_offsets: Mapping[int, int]

    def make_messages(self) -> list[Message]:
        """Make the messages that record the deletion: one for each QUEUES_PER_MESSAGE queues."""
        ends = sorted(self.end_offsets.items())
        return [
            self._make_message(dict(ends[first : first + QUEUES_PER_MESSAGE]))
            for first in range(0, len(ends), QUEUES_PER_MESSAGE)
        ]

    def _make_message(self, ends: Mapping[int, int]) -> Message:
        queues = {str(queue_id): offset for queue_id, offset in ends.items()}
        body = orjson.dumps({"version": VERSION, "topic": self.topic, "queues": queues})
        return Message.create(DELETION_TOPIC, body, tags=_tags_of(self.topic))

    @classmethod
    def parse(cls, message: StoredMessage) -> TopicDeletion:
        """Read a message of DELETION_TOPIC. Raises Corrupt for one of another version, too."""
        try:
            body: Any = orjson.loads(message.body)
            if body["version"] != VERSION:
                raise ValueError(f"version: expected {VERSION}, found {body['version']!r}")
            topic = body["topic"]
            ends = {int(queue_id): int(offset) for queue_id, offset in body["queues"].items()}
            if not isinstance(topic, str) or min([*ends, *ends.values(), 0]) < 0:
                raise ValueError(f"expected a topic, queue ids and offsets, found {body!r}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt(
                f"message at {message.physical_offset} of the commit log: expected the deletion of "
                f"a topic: {error}",
                topic=DELETION_TOPIC,
                offset=message.physical_offset,
            ) from None
        return cls(topic, ends)


def deletion_tags_code(topic: str) -> int:
    """Return the tags code of the units that lead to the deletions of a topic."""
    return tags_code(_tags_of(topic))


def _tags_of(topic: str) -> str:
    return topic.translate(_NOT_IN_TAGS)  # what properties cannot hold
