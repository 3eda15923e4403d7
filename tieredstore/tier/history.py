"""What a tier that holds a broker's history means for the local store below it, and the reverse.

A new local store above such a tier is one whose disk was lost, or another broker's: it starts only
when it was told to (`tieredStoreAdopt`). What the local store knows to be deleted is deleted in the
tier as well, whatever the metadata that was found says.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Final

from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import EndOfLife, HistorySource, QueueKey
from tieredstore.contracts.metadata_store import (
    NEVER_WRITTEN_MS,
    FileSegmentMetadata,
    MetadataStore,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider, WriterRecord
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.names import queue_path
from tieredstore.tier.clean_ends import ENDS_FILE, has_clean_ends
from tieredstore.tier.flat.segment import STATUS_DELETED

BYTES_PER_MS: Final = 1 << 20
"""More than a broker ever writes in a millisecond, on the average since 1970: a log that begins at
the time in milliseconds times this is behind each log that began so, or at 0, before."""
LEAST_LOG_BEGIN: Final = 1 << 31
"""To Java a queue of nothing but blank units ends at the byte 2^31 - 1 of the log: it would take
messages before that for built ones."""
_log = logging.getLogger(__name__)


def has_history(metadata: MetadataStore) -> bool:
    """Tell whether a tier has messages of the broker."""
    return any(
        entry.type is not FileSegmentType.INDEX
        and entry.status != STATUS_DELETED
        and (entry.size > 0 or entry.base_offset > 0)
        for entry in metadata.segments()
    )


def check_adoption(
    source: HistorySource, config: StoreConfig, provider: SegmentProvider, metadata: MetadataStore
) -> None:
    """Raise Invalid, naming the tier's last writer, for a new local store above a tier that has
    messages of this broker, unless it may adopt them."""
    if config.adopt or not source.is_new or not has_history(metadata):
        return
    record = find_layer(provider, WriterRecord)
    writer = None if record is None else record.find_last_writer(config.broker_name)
    raise Invalid(
        f"{provider.url}: holds messages of broker {config.broker_name!r}, last written by "
        f"{writer or 'somebody unknown'}, but the local store {config.store_path_root_dir} is new. "
        "When its disk was lost, set tieredStoreAdopt=true for one start: offsets then go on "
        "behind those of the tier. When this is another broker, give it another brokerName",
        path=config.store_path_root_dir,
    )


def adopt_history(
    source: HistorySource, config: StoreConfig, metadata: MetadataStore, now_ms: int
) -> None:
    """Let the log of a new local store begin where no log of this broker has been, so that message
    ids do not come again. Queues go on behind the tier's by themselves (`set_history`)."""
    if source.is_new and has_history(metadata):
        begin = max(now_ms * BYTES_PER_MS, LEAST_LOG_BEGIN)
        _log.warning("a new local store goes on behind the tier; its log begins at %d", begin)
        source.begin_log_at(begin)
    elif config.adopt:
        _log.warning(
            "tieredStoreAdopt=true: nothing is to be adopted; take it out, it would say yes to the "
            "loss of this disk as well"
        )


def keep_history(
    source: HistorySource, metadata: MetadataStore, broker_name: str, state: Path
) -> None:
    """Let queues go on behind a tier that is switched off, by its metadata: what it has of queues
    that the local store lacks is what was found when the tier was adopted. Raises Unavailable, and
    Corrupt for metadata that is damaged or lost: messages at offsets that the tier has already
    could never be uploaded."""
    try:
        metadata.load()
        if not metadata.topics() and has_clean_ends(state):
            raise Corrupt(
                f"{state}: the metadata of the tier is lost, which had queues when its writer "
                f"stopped ({ENDS_FILE}); rebuild it from the tier",
                path=str(state),
            )
    except Corrupt as error:
        raise Corrupt(
            f"{error}. The tier is switched off, but queues that only it has go on behind it. When "
            f"it is not wanted any more, move {state / 'config'}/tieredStoreMetadata.json* and "
            f"{state / ENDS_FILE} away: such queues then begin at offset 0",
            path=error.path,
        ) from error
    source.set_history(partial(_find_recorded_ends, metadata, broker_name))


def _find_recorded_ends(metadata: MetadataStore, broker_name: str, topic: str) -> dict[int, int]:
    """The queues of a topic, with the queue offset behind the last unit of each."""
    ends: dict[int, int] = {}
    for queue in metadata.queues(topic):
        path = queue_path(broker_name, topic, queue.queue_id)
        for entry in metadata.segments(path, FileSegmentType.CONSUME_QUEUE):
            if entry.status != STATUS_DELETED:
                ends[queue.queue_id] = (entry.base_offset + entry.size) // UNIT_SIZE
    return ends


def forget_deleted(source: HistorySource, metadata: MetadataStore, broker_name: str) -> None:
    """Announce the deletion of what the metadata has of queues that were deleted in the local
    store: a deletion that did not reach the tier, or metadata from before it."""
    old = [
        (key, entries)
        for key, end in source.find_deleted_queues().items()
        if (entries := _find_old_life(metadata, key, end, broker_name))
    ]
    if not old:
        return
    with metadata.batch():
        for key, entries in old:
            _log.warning("%s/%d: its deletion is finished in the tier", *key)
            for entry in entries:
                entry.status, entry.size = STATUS_DELETED, 0
                metadata.put_segment(entry)
            metadata.delete_queue(*key)
        for topic in {key.topic for key, _ in old}:
            if metadata.topic(topic) is not None and not metadata.queues(topic):
                metadata.delete_topic(topic)


def _find_old_life(
    metadata: MetadataStore, key: QueueKey, end: EndOfLife, broker_name: str
) -> list[FileSegmentMetadata]:
    """All segments of a queue in the tier, when it holds messages of the life that has ended: of
    lower offsets, and earlier (a Java broker begins at 0 again)."""
    entries = [
        entry
        for entry in metadata.segments(queue_path(broker_name, *key))
        if entry.status != STATUS_DELETED
    ]
    is_old = any(
        entry.type is FileSegmentType.CONSUME_QUEUE and entry.base_offset < end.offset * UNIT_SIZE
        for entry in entries
    )
    begin_ms = min((entry.begin_timestamp_ms for entry in entries), default=0)
    return entries if is_old and not end.timestamp_ms < begin_ms < NEVER_WRITTEN_MS else []
