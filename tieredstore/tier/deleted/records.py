"""Records of deleted topics, which the tier keeps forever (`docs/formats/topic-deletion.md`). A
recreated topic is a new generation of its name. Generations are distinguished by the topic id in
the metadata and by positions in the files of a queue. The commit log of a generation begins where
the previous generation ended, so no segment name is used twice."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from tieredstore.contracts.backups import BackupKind, BackupName, BackupPlace, ListedBackups
from tieredstore.contracts.segment import (
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.contracts.wrapping import find_layer
from tieredstore.disk.file_archive import pack_files, unpack_files
from tieredstore.errors import Corrupt, Refused
from tieredstore.message.consume_queue import UNIT_SIZE

FORMAT_VERSION: Final = 1
RECORDS_FILE: Final = "deletedTopics.json"
"""Name of the only file in the archive."""
KINDS: Final = frozenset({BackupKind.DELETED, BackupKind.DELETING})
_TRIES: Final = 3
"""Number of attempts to list the records while a writer replaces the listed objects."""


class QueueEnds(NamedTuple):
    """End offsets of the committed bytes in the two files of a queue."""

    commit_log: int
    consume_queue: int


class DeletedTopic(msgspec.Struct, frozen=True):
    """Deletions of one topic name.

    `next_id`: topic id for the next generation. Generations with smaller ids are deleted.
    `queues`: end of the deleted files of each queue id (bytes).
    `is_pending`: whether the tier may still have segments of the deleted topic. If False, every
    segment of the name was written after the deletion.
    `store`: identity of the store whose log contains the last deletion, or empty.
    `position`: byte position of that deletion in the log.
    """

    next_id: int
    queues: dict[int, QueueEnds]
    is_pending: bool = msgspec.field(default=True, name="pending")
    store: str = ""
    position: int = 0

    def is_behind(self, queue_id: int, type: FileSegmentType, base_offset: int) -> bool:
        """Return whether a segment begins at or after the end of the deleted files."""
        ends = self.queues.get(queue_id)
        if ends is None:
            return True
        is_log = type is FileSegmentType.COMMIT_LOG
        return base_offset >= (ends.commit_log if is_log else ends.consume_queue)

    def find_ends(self) -> dict[int, int]:
        """Return the queue offset after the last deleted message of each queue."""
        return {queue: ends.consume_queue // UNIT_SIZE for queue, ends in self.queues.items()}

    def merge(self, later: DeletedTopic) -> DeletedTopic:
        """Return this record combined with a later deletion of the same topic name."""
        queues = dict(self.queues)
        for queue_id, ends in later.queues.items():
            known = queues.get(queue_id, QueueEnds(0, 0))
            queues[queue_id] = QueueEnds(*map(max, known, ends))
        return DeletedTopic(
            max(self.next_id, later.next_id),
            queues,
            self.is_pending or later.is_pending,
            *((later.store, later.position) if later.store else (self.store, self.position)),
        )


class _File(msgspec.Struct, frozen=True):
    format: int
    topics: dict[str, DeletedTopic]


def encode_records(topics: Mapping[str, DeletedTopic], taken_ms: int) -> bytes:
    """Encode records as an archive for the tier."""
    data = msgspec.json.encode(_File(FORMAT_VERSION, dict(topics)))
    return pack_files({RECORDS_FILE: data}, FORMAT_VERSION, taken_ms=taken_ms)[1]


def decode_records(data: bytes, origin: str) -> dict[str, DeletedTopic]:
    """Decode an archive and verify all of its bytes. Raises Corrupt, or Invalid for a newer
    format."""
    archive = unpack_files(data, FORMAT_VERSION, origin)
    try:
        return msgspec.json.decode(archive.contents[RECORDS_FILE], type=_File).topics
    except (KeyError, msgspec.MsgspecError) as error:
        raise Corrupt(f"{origin}: no records of deleted topics: {error!r}", path=origin) from error


def list_records(provider: SegmentProvider, broker: str) -> list[BackupName]:
    """Return the names of the record versions in a tier, oldest first. Raises Unavailable."""
    place = find_layer(provider, BackupPlace)
    return pick_records([] if place is None else place.list_backups(broker))


def pick_records(names: Iterable[BackupName]) -> list[BackupName]:
    """Return the backup names that are record versions, oldest first."""
    return sorted(name for name in names if name.kind in KINDS)


def read_records(
    provider: SegmentProvider, broker: str, names: Iterable[BackupName]
) -> dict[str, DeletedTopic]:
    """Read the newest valid version of the records. Raises Unavailable, Invalid for a newer format,
    or Corrupt if every version is damaged."""
    place = find_layer(provider, BackupPlace)
    damaged: list[str] = []
    for name in sorted(names, reverse=True):
        data = None if place is None else place.read_backup(broker, name)
        if data is None:  # deleted since: there is a newer version
            continue
        try:
            return decode_records(data, f"{provider.url}: {broker}/.backups/{name}")
        except Corrupt as error:
            damaged.append(str(error))
    if damaged:
        raise Corrupt(
            f"{provider.url}: the records of deleted topics of broker {broker!r} are damaged: "
            f"{'; '.join(damaged)}. Put back a copy of them, or delete these files: topics whose "
            "deletion was not finished then return",
            path=broker,
        )
    return {}


def find_deleted(provider: SegmentProvider, broker: str) -> dict[str, DeletedTopic]:
    """Return the records of a broker. Raises the errors of `read_records`."""
    for _ in range(_TRIES):
        names = list_records(provider, broker)
        found = read_records(provider, broker, names)
        if found or not names or names == list_records(provider, broker):
            return found
    return found


def merge_left(
    there: Mapping[str, DeletedTopic], left: Mapping[str, DeletedTopic]
) -> dict[str, DeletedTopic]:
    """Merge the records of a tier with the records in a state directory. If a record exists only in
    the state directory, the tier is an older copy and may still have segments of the deleted
    topic."""
    merged = dict(there)
    for topic, record in left.items():
        known = there.get(topic)
        if known is None or known.next_id < record.next_id:
            new = msgspec.structs.replace(record, is_pending=True)
            merged[topic] = new if known is None else known.merge(new)
    return merged


def is_deleted(segment: SegmentId, pending: Mapping[str, DeletedTopic]) -> bool:
    """Return whether a segment belongs to a deleted topic. `pending`: deletion records by topic."""
    if not pending or segment.type is FileSegmentType.INDEX:
        return False
    topic, queue_id = split_path(segment.path)
    record = pending.get(topic)
    if record is None or not record.is_pending or queue_id is None:
        return False
    return not record.is_behind(queue_id, segment.type, segment.base_offset)


def drop_deleted(
    listings: Mapping[SegmentId, SegmentListing], pending: Mapping[str, DeletedTopic]
) -> dict[SegmentId, SegmentListing]:
    """Return a listing without the segments of deleted generations."""
    return {one: item for one, item in listings.items() if not is_deleted(one, pending)}


def split_path(path: str) -> tuple[str, int | None]:
    """Split the path of a queue into topic and queue id. The queue id is None if the second part is
    not a queue id."""
    topic, _, number = path.partition("/")[2].rpartition("/")
    return topic, int(number) if number.isascii() and number.isdigit() else None


_Known = dict[str, tuple[BackupName, dict[str, DeletedTopic]]]
_known: Final[WeakKeyDictionary[object, _Known]] = WeakKeyDictionary()
"""Newest records that were read, by provider and broker."""
_log = logging.getLogger(__name__)


def drop_deleted_segments(
    provider: SegmentProvider, listings: Mapping[SegmentId, SegmentListing]
) -> dict[SegmentId, SegmentListing]:
    """Return a listing without the segments of deleted topics. The listing must be recent, and may
    cover any part of a tier. Raises Unavailable, or Corrupt if the records are damaged."""
    found = dict(listings)
    for broker in {one.path.partition("/")[0] for one in found}:
        found = drop_deleted(found, find_pending(provider, broker))
    return found


def find_pending(provider: SegmentProvider, broker: str) -> dict[str, DeletedTopic]:
    """Return the records of topics whose deleted segments may still be in the tier. If this process
    has no permission to read the records, returns an empty dict and logs a warning. Raises the
    errors of `drop_deleted_segments`."""
    try:
        names = list_names(provider, broker)
    except Refused as error:
        _log.warning(
            "the records of deleted topics cannot be read, so a topic whose deletion is not "
            "finished is shown: %s",
            error,
        )
        return {}
    if not names or names[-1].kind is BackupKind.DELETED:
        return {}
    records = _read_once(provider, broker, names[-1])
    return {topic: record for topic, record in records.items() if record.is_pending}


def find_known_records(provider: SegmentProvider, broker: str) -> dict[str, DeletedTopic]:
    """Return all records of a broker. They are read again only if a newer version exists. Raises
    the errors of `drop_deleted_segments`."""
    names = list_names(provider, broker)
    return _read_once(provider, broker, names[-1]) if names else {}


def _read_once(
    provider: SegmentProvider, broker: str, newest: BackupName
) -> dict[str, DeletedTopic]:
    known = _known.setdefault(find_layer(provider, BackupPlace), {})
    if broker not in known or known[broker][0] != newest:
        known[broker] = (newest, find_deleted(provider, broker))
    return known[broker][1]


def list_names(provider: SegmentProvider, broker: str) -> list[BackupName]:
    """Return the names of the record versions, oldest first, from an earlier listing if possible.
    Raises Unavailable."""
    known = list_known_names(provider, broker)
    return list_records(provider, broker) if known is None else known


def list_known_names(provider: SegmentProvider, broker: str) -> list[BackupName] | None:
    """Return the names of the record versions, oldest first, or None if they were not listed. A
    provider that opens a tier from the shutdown snapshot lists nothing. Such a tier has not changed
    since the last epoch, so the records need not be listed. Raises Unavailable."""
    listed = find_layer(provider, ListedBackups)
    if listed is None:
        return list_records(provider, broker)
    names = listed.find_listed_backups(broker)
    return None if names is None else pick_records(names)
