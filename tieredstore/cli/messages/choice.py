"""Selection of messages from topics, and the format of their rows."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.errors import Invalid
from tieredstore.scan.findings import OnFinding, raise_on_damage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tieredstore.cli.messages.where import WhereFilter
    from tieredstore.message.record import StoredMessage
    from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
    from tieredstore.scan.plan import ScanBounds
    from tieredstore.scan.read.batch import MessageBatch
    from tieredstore.scan.rows import BodyForm


@dataclass(frozen=True, slots=True)
class MessageChoice:
    """Filter for the messages of a queue. `tags`: accepted tags, empty for all. `where`: additional
    condition, or None."""

    tags: frozenset[str] = frozenset()
    where: WhereFilter | None = None

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """Return the tags codes of matching messages, as an argument for `read_batches`. None means
        any."""
        from tieredstore.message.hashes import tags_code

        return frozenset(map(tags_code, self.tags)) if self.tags else None

    def takes(self, message: StoredMessage) -> bool:
        """Return whether a message matches. The text of the tags is compared, because a unit
        contains only their hash."""
        if self.tags and message.tags not in self.tags:
            return False
        return self.where is None or self.where.takes(message)

    def select(self, batch: MessageBatch) -> MessageBatch:
        if not self.tags and self.where is None:
            return batch
        import numpy as np

        return batch.select(np.fromiter(map(self.takes, batch.messages()), np.bool_, len(batch)))

    def explain_nothing(self) -> str:
        """Explain an empty result, or return an empty string."""
        from tieredstore.cli.help.suggesting import hint_at
        from tieredstore.cli.messages.where import FIELDS

        strangers = [] if self.where is None else self.where.find_strangers()
        return "".join(
            f"; none has a property {name!r}{hint_at(name, FIELDS)}" for name in strangers
        )


def names_one_topic(topics: Sequence[str]) -> bool:
    """Return whether `topics` (names and shell patterns) is a single name."""
    from tieredstore.scan.selection import is_pattern

    return len(topics) == 1 and not is_pattern(topics[0])


def choose_queues(
    catalogue: TierCatalogue,
    topics: Sequence[str],
    queue_id: int | None,
    broker: str | None,
    *,
    may_be_gone: bool = False,
) -> list[QueueFiles]:
    """Return the queues of topics. `topics`: names and shell patterns. `may_be_gone`: True to allow
    missing topics and queues. Otherwise raises Invalid if a name or pattern matches no topic, or if
    no queue remains."""
    from tieredstore.scan.selection import Selection, require_topics, split_topics

    if may_be_gone:
        there = catalogue.topic_names()
        topics = [one for one in topics if fnmatch.filter(there, one)]
        is_there = topics and (broker is None or broker in catalogue.brokers)
        if not is_there:
            return []
    elif names_one_topic(topics):
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
    if not found and not may_be_gone:
        raise Invalid(f"{catalogue.url}: no topic of {' '.join(topics)} has a queue {queue_id}")
    return found


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """Selection of messages and format of their rows. `topics`: names and shell patterns.
    `queue_id`: None for all queues. `names`: required fields of rows. `on_finding`: function called
    for each damage. The read ignores the damage if it returns, and ends if it raises."""

    topics: Sequence[str]
    queue_id: int | None
    bounds: ScanBounds
    choice: MessageChoice
    body: BodyForm
    names: tuple[str, ...]
    on_finding: OnFinding = raise_on_damage
