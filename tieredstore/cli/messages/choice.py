"""Which messages of some topics are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.cli.messages.where import WhereFilter
    from tieredstore.message.record import StoredMessage
    from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
    from tieredstore.scan.read.batch import MessageBatch


@dataclass(frozen=True, slots=True)
class MessageChoice:
    """Tells which messages of a queue are wanted. tags: TAGS values, empty for all messages.
    where: what else is said of them."""

    tags: frozenset[str] = frozenset()
    where: WhereFilter | None = None

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """What the units of wanted messages have, as `read_batches` takes it."""
        from tieredstore.message.hashes import tags_code

        return frozenset(map(tags_code, self.tags)) if self.tags else None

    def takes(self, message: StoredMessage) -> bool:
        """Tell whether a message is wanted: a unit only has the hash of its tags."""
        if self.tags and message.tags not in self.tags:
            return False
        return self.where is None or self.where.takes(message)

    def select(self, batch: MessageBatch) -> MessageBatch:
        """Return the messages of a batch that are wanted."""
        if not self.tags and self.where is None:
            return batch
        import numpy as np

        return batch.select(np.fromiter(map(self.takes, batch.messages()), np.bool_, len(batch)))

    def explain_nothing(self) -> str:
        """Return what is to be said where no message was found, empty if there is nothing."""
        from tieredstore.cli.help.suggesting import hint_at
        from tieredstore.cli.messages.where import FIELDS

        strangers = [] if self.where is None else self.where.find_strangers()
        return "".join(
            f"; none has a property {name!r}{hint_at(name, FIELDS)}" for name in strangers
        )


def names_one_topic(topics: Sequence[str]) -> bool:
    """Tell whether topics, given as names and shell patterns, are one by its name."""
    from tieredstore.scan.selection import is_pattern

    return len(topics) == 1 and not is_pattern(topics[0])


def choose_queues(
    catalogue: TierCatalogue, topics: Sequence[str], queue_id: int | None, broker: str | None
) -> list[QueueFiles]:
    """Choose the queues of topics, given as names and shell patterns. Raises Invalid for one that
    no topic of the tier is, and where nothing is chosen."""
    from tieredstore.scan.selection import Selection, require_topics, split_topics

    if names_one_topic(topics):
        return catalogue.select(topics[0], queue_id, broker)
    catalogue.select(broker=broker)
    require_topics(catalogue, topics)
    names, pattern = split_topics(topics)
    found = Selection(
        topics=names,
        topic_pattern=pattern,
        brokers=None if broker is None else (broker,),
        queue_ids=None if queue_id is None else (queue_id,),
    ).queues(catalogue)
    if not found:
        raise Invalid(f"{catalogue.url}: no topic of {' '.join(topics)} has a queue {queue_id}")
    return found
