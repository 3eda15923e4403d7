"""Records of deleted topics, as the writer of a tier keeps them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.backups import BackupKind, BackupName, BackupPlace
from tieredstore.contracts.metadata_store import MetadataStore, TopicMetadata
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Busy, Fenced, TieredStoreError
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.names import INDEX_TOPIC
from tieredstore.tier.deleted.records import (
    DeletedTopic,
    QueueEnds,
    encode_records,
    find_deleted,
    list_known_names,
    list_records,
    merge_left,
)
from tieredstore.tier.writing import TierWriter

KEPT_VERSIONS: Final = 2
"""Number of record versions to keep. If the newest is damaged, the previous one is used."""
_log = logging.getLogger(__name__)


class DeletedTopics:
    """Records of the deleted topics of one broker. Thread-safe. A topic's record is written to the
    tier before any of its segments is deleted. Readers and restores use the records, and the writer
    uses them to correct metadata that is older than a deletion. Until `begin` is called, deletions
    are remembered only in memory."""

    def __init__(
        self,
        provider: SegmentProvider,
        metadata: MetadataStore,
        broker: str,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._provider = provider
        self._metadata = metadata
        self._broker = broker
        self._clock = clock
        self._place = find_layer(provider, BackupPlace)
        self._lock = threading.RLock()
        self._writer: TierWriter | None = None
        self._topics: dict[str, DeletedTopic] = {}
        self._there: list[BackupName] | None = None
        self._newest = ""  # the name of the newest version in the tier
        self._is_left = False  # by a former writer, and not compared with the tier
        self._sequence = 0
        self._is_written = True
        self.find_position: Callable[[str], tuple[str, int]] = lambda _topic: ("", 0)
        """Function of a topic that returns where its last deletion is recorded: the identity of a
        store, and the byte position in the commit log of that store."""

    def begin(self, writer: TierWriter) -> None:
        """Read the records, and write later changes under the epoch of `writer`. If the previous
        writer may still be running, the next `write` writes all records. If the tier lacks some
        records of the state directory, they are written immediately, because the tier is an older
        copy. Raises Corrupt, Invalid, Fenced, Unavailable."""
        with self._lock:
            found = writer.find_clean_records()
            is_whole = True
            if found is None:
                there = find_deleted(self._provider, self._broker)
                self._topics = merge_left(there, writer.find_left_records())
                is_whole = self._topics == there
            else:
                self._topics, self._newest = found.topics, found.newest
            self._is_left = found is not None
            # Anything that a previous writer still writes is then older than the newest version.
            # After a clean stop, there is no such writer.
            is_shared = self._provider.capabilities.conditional and writer.epoch_number > 1
            self._is_written = is_whole and (found is not None or not is_shared)
            self._writer = writer
            if not is_whole:
                self.write()

    def leave(self) -> None:
        """Save the records in the state directory for the next writer, if they are all in the
        tier."""
        with self._lock:
            writer, self._writer = self._writer, None
            if writer is not None and self._is_written:
                writer.leave_clean_records(self._topics, self._newest)

    def compare(self) -> None:
        """Compare the records in the state directory with the tier, which may be an older copy. A
        record that the tier lacks is added as pending, because the tier may still have segments of
        the deleted topic. Call this after the tier was listed. Raises the errors of `find_deleted`
        and `write`."""
        with self._lock:
            names = list_known_names(self._provider, self._broker) if self._is_left else None
            if names is None:
                return
            newest = str(names[-1]) if names else ""
            if newest == self._newest:
                return
            self._is_left = False
            there = find_deleted(self._provider, self._broker)
            self._topics = merge_left(there, self._topics)
            self._is_written = self._topics == there
            self._newest = newest
            self.write()

    # Questions

    def get(self, topic: str) -> DeletedTopic | None:
        """Return the record of a topic, or None if the topic was never deleted."""
        return self._topics.get(topic)

    def list_topics(self) -> dict[str, DeletedTopic]:
        """Return all records."""
        with self._lock:
            return dict(self._topics)

    def find_ends(self, topic: str) -> dict[int, int]:
        """Return the queue offset after the last deleted message, for each queue of a topic."""
        record = self._topics.get(topic)
        return {} if record is None else record.find_ends()

    def find_log_begin(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the position at which the commit log of a new queue begins. If a topic of this
        name was deleted, the new log begins where the deleted one ended. Raises the errors of
        `write`, and Busy while a new segment could get the name of a segment that is being
        deleted."""
        record = self._topics.get(topic)
        ends = None if record is None else record.queues.get(queue_id)
        if record is None or ends is None:
            return 0
        if offset * UNIT_SIZE < ends.consume_queue:
            # Java and stores of other processes restart at 0.
            if record.is_pending:
                raise Busy(f"{topic}: segments of it are being deleted", topic=topic)
            self.write()
        return ends.commit_log

    # Changes

    def add_topic(self, topic: str) -> int:
        """Add a topic to the metadata unless it exists, and return its topic id. The id differs
        from the ids of all deleted topics."""
        known = self._metadata.topic(topic)
        if known is not None:
            return known.topic_id
        with self._lock:
            record = self._topics.get(topic)
            highest = max((one.next_id for one in self._topics.values()), default=-1)
        with self._metadata.batch():
            is_free = record is not None and not self._is_taken(record.next_id)
            topic_id = added = self._metadata.add_topic(topic).topic_id
            if record is not None and is_free:
                topic_id = record.next_id
            elif added <= highest:  # the metadata is older than the deletions
                topic_id = highest + 1
            if topic_id != added:
                self._metadata.update_topic(TopicMetadata(topic_id, topic))
        return topic_id

    def _is_taken(self, topic_id: int) -> bool:
        return any(one.topic_id == topic_id for one in self._metadata.topics())

    def reserve_id(self) -> int:
        """Return a new topic id that has never been used and will not be used again."""
        with self._lock, self._metadata.batch():
            highest = max((one.next_id for one in self._topics.values()), default=-1)
            is_there = self._metadata.topic(INDEX_TOPIC) is not None
            found = self._metadata.add_topic(INDEX_TOPIC)
            if is_there or found.topic_id <= highest:
                known = (entry.topic_id for entry in self._metadata.topics())
                found.topic_id = max(highest, *known) + 1
                self._metadata.update_topic(found)
            if not is_there:
                self._metadata.delete_topic(INDEX_TOPIC)
            return found.topic_id

    def record(self, ends: Mapping[str, Mapping[int, QueueEnds]]) -> None:
        """Record topics as deleted, and write the records to the tier. `ends`: for each topic,
        where the files of its queues end. If an error is raised, nothing is recorded. Raises
        Fenced, Unavailable."""
        with self._lock:
            before = dict(self._topics)
            for topic, queues in ends.items():
                new = DeletedTopic(
                    self._find_next_id(topic), dict(queues), True, *self.find_position(topic)
                )
                known = self._topics.get(topic)
                self._topics[topic] = new if known is None else known.merge(new)
            if self._topics == before:
                return
            try:
                self._is_written = False
                self.write()
            except BaseException:
                self._topics = before
                raise

    def take_over(self, records: Mapping[str, DeletedTopic]) -> None:
        """Add the records of the tier that this tier was copied from. The added records are
        pending, because this tier may still have segments of the deleted topics. Raises Fenced,
        Unavailable."""
        with self._lock:
            for topic, found in records.items():
                known = self._topics.get(topic)
                if known is not None and known.next_id >= found.next_id:
                    continue
                new = msgspec.structs.replace(found, is_pending=True)
                self._topics[topic] = new if known is None else known.merge(new)
                self._is_written = False
            self.write()

    def _find_next_id(self, topic: str) -> int:
        """Return the id that the topic gets if it is recreated, greater than all ids it has had."""
        entry, record = self._metadata.topic(topic), self._topics.get(topic)
        if record is not None and (entry is None or entry.topic_id < record.next_id):
            return record.next_id
        return self.reserve_id()

    def settle(self, topics: Collection[str]) -> None:
        """Record that the tier no longer has segments of these deleted topics. The change is
        written by the next `record` or `write`."""
        with self._lock:
            for topic in topics:
                record = self._topics.get(topic)
                if record is not None and record.is_pending:
                    self._topics[topic] = msgspec.structs.replace(record, is_pending=False)
                    self._is_written = False

    def list_pending(self) -> list[str]:
        """List the topics whose deleted segments may still be in the tier."""
        with self._lock:
            return [topic for topic, record in self._topics.items() if record.is_pending]

    def write(self) -> None:
        """Write the records to the tier if they have changed. No-op without a writer, or if the
        provider cannot store backups. Raises Fenced, Unavailable."""
        with self._lock:
            place, writer = self._place, self._writer
            if self._is_written or place is None or writer is None:
                return
            writer.confirm()
            there = self._there
            if there is None:
                there = list_records(self._provider, self._broker)
            is_pending = any(record.is_pending for record in self._topics.values())
            kind = BackupKind.DELETING if is_pending else BackupKind.DELETED
            epoch = writer.epoch_number
            used = (name.sequence for name in there if name.epoch == epoch)
            self._sequence = max(self._sequence, *used, 0) + 1
            name = BackupName(epoch, self._sequence, kind)
            self._there = None  # unknown, unless all of this succeeds
            data = encode_records(self._topics, self._clock.now_ms())
            place.write_backup(self._broker, name, data)
            try:
                writer.confirm()
            except Fenced:
                with suppress(TieredStoreError):  # it must not look like a deletion
                    place.delete_backups(self._broker, [name])
                raise
            self._is_written = True
            writer.note_records(self._topics)
            self._newest = str(name)
            there.append(name)
            old = sorted(there)[:-KEPT_VERSIONS]
            place.delete_backups(self._broker, old)
            self._there = [one for one in there if one not in old]
