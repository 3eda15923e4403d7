"""Connects a local store with the history of its broker in a tier. `tier/identity` decides whether
the two belong together, and this module finds the ends of the queues for that decision. Topics that
were deleted in the local store are also deleted in the tier."""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Final

from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import (
    DeletedEnd,
    DispatchSource,
    HistorySource,
    QueueKey,
)
from tieredstore.contracts.metadata_store import (
    NEVER_WRITTEN_MS,
    STATUS_DELETED,
    FileSegmentMetadata,
    MetadataStore,
    TopicMetadata,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider
from tieredstore.contracts.tier_identity import WriterKind
from tieredstore.errors import Corrupt
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.lite import LITE_QUEUE_ID
from tieredstore.message.names import queue_path
from tieredstore.tier.deleted.records import drop_deleted_segments, split_path
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.identity.belonging import Belonging
from tieredstore.tier.identity.comparison import Contents
from tieredstore.tier.lite.service import LiteService, is_light
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.state_files import ENDS_FILE, find_left_records, has_clean_ends
from tieredstore.tier.upload.local_records import check_last_message
from tieredstore.tier.writing import TierWriter

BYTES_PER_MS: Final = 1 << 20
"""Upper bound of the bytes that a broker writes per millisecond, on average since 1970. A new log
begins at this value times the current time (epoch ms). It therefore begins after the end of every
earlier log that began in this way or at 0."""
COMPARED_QUEUES: Final = 16
"""Number of queues whose last message is compared at startup, if nothing else proves that store and
tier belong to the same broker. The others are compared before their first upload."""
LEAST_LOG_BEGIN: Final = 1 << 31
"""Minimum position at which a new log begins. In Java, a queue with only blank units seems to end
at byte 2^31 - 1 of the log, so messages before that byte would count as dispatched."""
_log = logging.getLogger(__name__)


def find_segment_differences(
    source: HistorySource | None,
    provider: SegmentProvider,
    metadata: MetadataStore,
    broker_name: str,
) -> Contents:
    """List the tier, and find segments of queues that are only in the tier or only in the metadata.
    Raises Unavailable."""
    listings = {item.id: item for item in provider.list(broker_name)}
    listed = {one: item.size_bytes for one, item in listings.items()}
    deleted = source.find_deleted_queues() if source is not None else {}
    gone = {queue_path(broker_name, *key) for key in deleted}
    entries = [
        entry
        for entry in metadata.segments()
        if entry.type is not FileSegmentType.INDEX and entry.path.startswith(f"{broker_name}/")
    ]
    known = {entry.id for entry in entries}
    return Contents(
        unknown=tuple(
            f"{found} is in the tier, and not in the metadata"
            for found in drop_deleted_segments(provider, listings)
            if listed[found] and found.type is not FileSegmentType.INDEX and found not in known
        ),
        missing=tuple(
            f"{entry.id}: expected {entry.size} bytes by the metadata, found {found} in the tier"
            for entry in entries
            if entry.status != STATUS_DELETED
            and entry.path not in gone
            and entry.size > (found := listed.get(entry.id, 0))
        ),
    )


def compare_queues(
    source: HistorySource, flat_files: FlatFileStore, known: Contents | None, *, store: str
) -> Contents:
    """Return the queues in which the store is behind the tier, so that the next put would reuse an
    offset of the tier. `known`: result of `find_segment_differences`, or None if the records of
    earlier starts prove that store and tier belong together. If given, messages are compared too.
    Raises Unavailable."""
    ahead = _find_missed_deletions(source, flat_files, store)
    lost = []
    files = [file for file in flat_files.files() if file.is_initialised]
    for file in files:
        end, recorded = _find_message_end(file), _find_recorded_end(file)
        key = QueueKey(file.topic, file.queue_id)
        found = source.find_next_offset(key) if end or recorded else 0
        if end > found:
            ahead.append(
                f"{file.path}: the tier has messages up to queue offset {end}, the store continues "
                f"at {found}"
            )
        elif recorded > (kept := _find_kept_end(file)) and not source.is_empty:
            available = source.queue_range(key) if isinstance(source, DispatchSource) else None
            begin = found if available is None else available.min_offset
            if recorded > found or begin > kept:
                lost.append(
                    f"{file.path}: the metadata names messages up to queue offset {recorded}, the "
                    f"tier has them up to {kept}, and the store begins at {begin} and continues at "
                    f"{found}"
                )
    beyond, hidden = _compare_unknown(source, flat_files)
    if known is None:
        return Contents(ahead=tuple(ahead), hidden=hidden, beyond=beyond, lost=tuple(lost))
    gaps, differing = [], []
    if isinstance(source, DispatchSource):
        ends = {QueueKey(it.topic, it.queue_id): it.consume_queue_max_offset for it in files}
        for key, deleted in source.find_deleted_queues().items():
            ends[key] = max(ends.get(key, 0), deleted.offset)  # the tier need not have these
        topic_filter = TopicFilter(flat_files.config)
        topic_filter.take_levels(source.topic_storage_levels())
        for key in source.queues():
            if not topic_filter.is_uploaded(key.topic):
                continue
            available = source.queue_range(key)
            if available is not None and available.min_offset > (end := ends.get(key, 0)):
                gaps.append(
                    f"{key.topic}/{key.queue_id}: the tier ends at queue offset {end}, the store "
                    f"begins at {available.min_offset}"
                )
        for file in sorted(files, key=lambda it: -it.consume_queue_max_offset)[:COMPARED_QUEUES]:
            key = QueueKey(file.topic, file.queue_id)
            available = source.queue_range(key)
            try:
                if available is not None:
                    check_last_message(source, key, file, available)
            except Corrupt as error:
                differing.append(str(error))
    return Contents(
        *(known.unknown, known.missing, tuple(gaps), tuple(ahead), tuple(differing)),
        hidden=hidden,
        beyond=beyond,
        lost=tuple(lost),
    )


def _find_missed_deletions(
    source: HistorySource, flat_files: FlatFileStore, store: str
) -> list[str]:
    """Describe the topics whose deletion is recorded in the tier but not in the log of this store.
    Such a store is an older copy, and would upload the deleted topics again."""
    return [
        f"topic {topic}: the tier knows of its deletion at byte {record.position} of the store's "
        f"log, which ends at {source.log_end}"
        for topic, record in flat_files.deleted.list_topics().items()
        if record.store and record.store == store and record.position >= source.log_end
    ]


def _compare_unknown(
    source: HistorySource, flat_files: FlatFileStore
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compare the store with segments that are in the tier but not in the metadata. Returns the
    queues that end before such a segment in the store, and the queues that no longer have its
    messages in the store. No reader would find those messages."""
    beyond: list[str] = []
    hidden: list[str] = []
    for path, end in flat_files.unknown_ends.items():
        topic, queue_id = split_path(path)
        if queue_id is None:
            continue
        key = QueueKey(topic, queue_id)
        begin = source.find_next_offset(key)
        sentence = (
            f"{path}: the tier has segments up to queue offset {end} that the metadata does not "
            f"know of, the store continues at {begin}"
        )
        if end > begin:
            (hidden if source.is_empty else beyond).append(sentence)
            continue
        available = source.queue_range(key) if isinstance(source, DispatchSource) else None
        file = flat_files.get(topic, queue_id)
        known_end = file.consume_queue_max_offset if file and file.is_initialised else 0
        if available is not None and available.min_offset > known_end:
            hidden.append(f"{sentence} and begins at {available.min_offset}")
    return tuple(beyond), tuple(hidden)


def _find_message_end(file: FlatMessageFile) -> int:
    """Return the queue offset after the last message that the tier has or had. The queue may end
    later, because an operator who skips messages moves its end forward without assigning
    offsets."""
    segments = file.consume_queue.segments
    filled = [segment.end_offset for segment in segments if segment.commit_position]
    return filled[-1] // UNIT_SIZE if filled else file.consume_queue_max_offset


def _find_kept_end(file: FlatMessageFile) -> int:
    """Return the queue offset after the last message in the tier. Without messages, returns the
    offset at which the first segment of the queue begins."""
    segments = file.consume_queue.segments
    filled = [segment.end_offset for segment in segments if segment.commit_position]
    return (filled[-1] if filled else segments[0].base_offset) // UNIT_SIZE


def _find_recorded_end(file: FlatMessageFile) -> int:
    """Return the queue offset after the last message that the metadata records."""
    filled = [one for one in file.consume_queue.segments if one.recorded_size_bytes]
    return (filled[-1].base_offset + filled[-1].recorded_size_bytes) // UNIT_SIZE if filled else 0


def begin_behind_history(source: HistorySource, now_ms: int) -> None:
    """Begin the commit log of a new local store after all earlier logs of this broker, so that
    message ids are unique. The queues continue at their ends in the tier (`set_history`)."""
    begin = max(now_ms * BYTES_PER_MS, LEAST_LOG_BEGIN)
    _log.warning("a new local store continues behind the tier. Its log begins at %d", begin)
    source.begin_log_at(begin)


def keep_history(
    source: HistorySource, metadata: MetadataStore, broker_name: str, state: Path
) -> None:
    """Make queues that the local store lacks begin at their ends in a tier that is disabled. The
    metadata has these ends, because the queues were found when the tier was adopted. Raises
    Unavailable. Raises Corrupt if the metadata is damaged or lost, because new messages at offsets
    that the tier already has could never be uploaded."""
    try:
        metadata.load()
        if not metadata.topics() and has_clean_ends(state):
            raise Corrupt(
                f"{state}: the metadata of the tier is lost, which had queues when its writer "
                f"stopped ({ENDS_FILE}). Rebuild it from the tier",
                path=str(state),
            )
    except Corrupt as error:
        raise Corrupt(
            f"{error}. The tier is switched off, but its own queues continue after it. "
            f"If it is no longer wanted, move {state / 'config'}/tieredStoreMetadata.json* and "
            f"{state / ENDS_FILE} away: such queues then begin at offset 0",
            path=error.path,
        ) from error
    records = find_left_records(state)
    source.set_history(
        partial(_find_recorded_ends, metadata, broker_name),
        lambda topic: records[topic].find_ends() if topic in records else {},
    )


def _find_recorded_ends(metadata: MetadataStore, broker_name: str, topic: str) -> dict[int, int]:
    """Return the queue offset after the last unit of each queue of a topic."""
    ends: dict[int, int] = {}
    for queue in metadata.queues(topic):
        path = queue_path(broker_name, topic, queue.queue_id)
        for entry in metadata.segments(path, FileSegmentType.CONSUME_QUEUE):
            if entry.status != STATUS_DELETED:
                ends[queue.queue_id] = (entry.base_offset + entry.size) // UNIT_SIZE
    return ends


def forget_deleted(
    source: HistorySource,
    flat_files: FlatFileStore,
    *,
    is_loaded: bool,
    kept: Collection[str] = (),
) -> list[tuple[TopicMetadata, list[int]]]:
    """Delete topics from the tier that were deleted in the local store. This is needed if the
    deletion did not reach the tier, or if the tier or its metadata is an older copy. Runs before
    `FlatFileStore.load`, and again with `is_loaded` after the local store has dispatched the
    remaining records. The local store then forgets its records of the deletions, except those of
    `kept` topics. Returns the result of `destroy_topics`. Raises Unavailable."""
    metadata, broker_name = flat_files.metadata, flat_files.config.broker_name
    old: dict[str, dict[int, list[FileSegmentMetadata]]] = {}
    deleted = source.find_deleted_queues()
    for key, end in deleted.items():
        is_silent = source.find_next_offset(key) == end.offset
        entries = _find_old_life(metadata, key, end, broker_name, is_silent=is_silent)
        if entries is not None:
            old.setdefault(key.topic, {})[key.queue_id] = entries
    whole = {
        topic
        for topic, queues in old.items()
        if queues.keys() >= {queue.queue_id for queue in metadata.queues(topic)}
    }
    strays = {
        split_path(path)[0]
        for path, unknown_end in flat_files.unknown_ends.items()
        if (life := deleted.get(_find_key(path))) is not None and unknown_end <= life.offset
    }
    whole |= {topic for topic in strays if metadata.topic(topic) is None}
    for topic in sorted(old.keys() | whole):
        _log.warning("topic %s: its deletion is finished in the tier", topic)
    found = flat_files.destroy_topics(whole)
    with metadata.batch():
        for topic in old.keys() - whole:  # recreated by a Java broker
            for queue_id, entries in old[topic].items():
                for entry in entries:
                    entry.status, entry.size = STATUS_DELETED, 0
                    metadata.put_segment(entry)
                metadata.delete_queue(topic, queue_id)
    if is_loaded:
        source.forget_deletions({key.topic for key in deleted}.difference(kept))
    return found


def _find_key(path: str) -> QueueKey:
    topic, queue_id = split_path(path)
    return QueueKey(topic, -1 if queue_id is None else queue_id)


def _find_old_life(
    metadata: MetadataStore, key: QueueKey, end: DeletedEnd, broker_name: str, *, is_silent: bool
) -> list[FileSegmentMetadata] | None:
    """Return the segments of a queue that are not marked for deletion, if they are older than the
    deletion of its topic. Otherwise return None. Such segments begin below the end of the deleted
    queue, and their messages are older than the deletion. `is_silent`: whether no message was put
    since the topic was recreated."""
    known = list(metadata.segments(queue_path(broker_name, *key)))
    entries = [entry for entry in known if entry.status != STATUS_DELETED]
    queues = [entry for entry in entries or known if entry.type is FileSegmentType.CONSUME_QUEUE]
    end_position = end.offset * UNIT_SIZE
    is_old = any(entry.base_offset < end_position for entry in queues)
    if is_silent and queues:  # everything has expired, and the queue is empty at its end
        is_old |= all(entry.base_offset == end_position and not entry.size for entry in queues)
    begin_ms = min((entry.begin_timestamp_ms for entry in entries), default=0)
    return entries if is_old and not end.timestamp_ms < begin_ms < NEVER_WRITTEN_MS else None


class StartComparison:
    """Comparison of store and tier at startup. It compares first what both recorded about each
    other (the marks, see `belonging`), then the segments, then the queues.

    `source`: the loaded local store, or None if it keeps no marks.
    `gives_offsets`: whether the store accepts messages after startup.
    `is_named`: whether the configuration names the broker. Otherwise the broker has the name of the
    host.
    `lite`: object that knows the ends of light queues.
    """

    def __init__(
        self,
        config: StoreConfig,
        flat_files: FlatFileStore,
        state: Path,
        source: HistorySource | None,
        clock: Clock,
        *,
        gives_offsets: bool,
        is_named: bool,
        lite: LiteService,
    ) -> None:
        self._lite = lite
        self._config = config
        self._flat_files = flat_files
        self._source = source
        self._clock = clock
        self._known: Contents | None = None
        self._writer: TierWriter | None = None
        self.belonging = Belonging(
            *(flat_files.provider, config.broker_name, state, WriterKind.STORE),
            source=source,
            is_told=config.adopt,
            gives_offsets=gives_offsets,
            is_named=is_named,
        )

    def compare_segments(self) -> None:
        """Compare the segments in the tier with the metadata, before anything is deleted. No-op if
        the records of earlier starts prove that store and tier belong together. Raises Invalid,
        Unavailable."""
        metadata = self._flat_files.metadata
        self._flat_files.deleted.find_position = self._find_position
        if self.belonging.needs_contents:
            self._known = find_segment_differences(
                *(self._source, self._flat_files.provider, metadata, self._config.broker_name)
            )
            self.belonging.compare_contents(metadata, self._known)

    def compare_queues(self, writer: TierWriter, *, is_started: bool = False) -> None:
        """Compare the ends of the queues, and record that store, state and tier belong together.
        After a crash, the end of a queue with undispatched messages is known only once the local
        store has started. `finish` then makes the comparison. `is_started`: whether the local store
        has started. Raises Invalid, Unavailable."""
        source = self._source
        self._writer = None
        if source is not None:
            source.set_history(self._find_end_offsets, self._find_deleted_ends)
            if not is_started and not source.is_dispatched:
                self._writer = writer
                return
            contents = compare_queues(
                *(source, self._flat_files, self._known), store=self.belonging.store
            )
            self.belonging.compare_contents(self._flat_files.metadata, contents)
            if source.is_empty and self.belonging.knows_history:
                begin_behind_history(source, self._clock.now_ms())
            elif self._config.adopt:
                _log.warning(
                    "tieredStoreAdopt=true: take it out, it would say yes to the next loss as well"
                )
        self._flat_files.record_recovered()  # not before: the sizes in the metadata are compared
        writer.record_belonging()

    def finish(self) -> None:
        """Compare the queues whose ends are known only once the local store has started. Raises
        Invalid, Unavailable."""
        if self._writer is not None:
            self.compare_queues(self._writer, is_started=True)

    def _find_end_offsets(self, topic: str) -> dict[int, int]:
        if not is_light(topic):
            return self._flat_files.find_end_offsets(topic)
        end = self._lite.find_end(topic)
        return {LITE_QUEUE_ID: end} if end else {}

    def _find_deleted_ends(self, topic: str) -> dict[int, int]:
        return {} if is_light(topic) else self._flat_files.deleted.find_ends(topic)

    def _find_position(self, topic: str) -> tuple[str, int]:
        """Return the identity of this store, and the byte position of a topic's last deletion in
        its log. Returns ("", 0) if the log has no record of a deletion."""
        deleted = {} if self._source is None else self._source.find_deleted_queues()
        positions = [end.physical_offset for key, end in deleted.items() if key.topic == topic]
        return (self.belonging.store, max(positions)) if positions else ("", 0)
