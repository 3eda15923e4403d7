"""Search for messages by key or message id in a tier, with or without its state directory."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.errors import Corrupt
from tieredstore.message.columns.records import keys_to_index
from tieredstore.message.hashes import tiered_key_hash_candidates
from tieredstore.message.hosts import is_offset_message_id, parse_offset_message_id
from tieredstore.message.index import tiered
from tieredstore.message.index.first_design import first_design_size
from tieredstore.message.layout import CODA_SIZE
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, TierCatalogue
from tieredstore.scan.expired import open_queue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import OnFinding, damage, raise_on_damage
from tieredstore.scan.holes import find_lost_units, make_lost_finding
from tieredstore.scan.keys.index_files import open_index_file
from tieredstore.scan.keys.places import find_places
from tieredstore.scan.listing import sort_by_base
from tieredstore.scan.read.batch import Int64s, find_whole_records
from tieredstore.scan.read.batches import make_unusable_finding
from tieredstore.tier.index.index_file import MAX_CHAIN_ITEMS, IndexItem, Wanted
from tieredstore.tier.index.watermarks import FileState, find_capacity
from tieredstore.tier.reading import run

FIRST_MS, LAST_MS = -(2**63), 2**63
"""Bounds that include every store time that a record can have, also times before 1970."""
_MOST_ITEMS = 1 << 20


@dataclass(frozen=True, slots=True)
class Hit:
    """Message whose topic, key and body CRC were checked."""

    queue: QueueFiles
    message: StoredMessage


@dataclass(frozen=True, slots=True)
class UnsealedFiles:
    """Index files of a state directory that are not uploaded yet. `slots`, `max_items`: configured
    capacity of a file. `states`: watermark entries by the begin timestamp of the file."""

    directory: Path
    slots: int
    max_items: int
    states: Mapping[int, FileState] = field(default_factory=dict)


def find_by_key(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    queues: Sequence[QueueFiles],
    topic: str,
    key: str,
    *,
    since_ms: int = FIRST_MS,
    until_ms: int = LAST_MS,
    limit: int = 64,
    is_id: bool = False,
    unsealed: UnsealedFiles | None = None,
    on_finding: OnFinding = raise_on_damage,
) -> list[Hit]:
    """Find messages by key or UNIQ_KEY in the queues of a topic, stored within [since, until).
    Return at most `limit` messages by queue and offset. With `is_id`, only UNIQ_KEY counts. Index
    files are searched newest first. Items are only hints: each message is read, and its topic and
    key are checked. `on_finding`: receives damage. The other messages are still returned. Raises
    Unavailable."""
    ids = catalogue.topic_ids
    wanted = Wanted(
        tiered_key_hash_candidates(topic, key),
        _MOST_ITEMS,
        since_ms,
        until_ms,
        None if ids is None else ids.get(topic),
    )
    by_place = {(queue.broker, queue.queue_id): queue for queue in queues if queue.topic == topic}
    hits: dict[tuple[str, int, int], Hit] = {}
    brokers = sorted({broker for broker, _ in by_place})
    for broker in brokers:
        for items in _items(
            provider, catalogue.indexes.get(broker, ()), unsealed, wanted, on_finding
        ):
            for item in items:
                place = (broker, item.queue_id, item.offset)
                queue = by_place.get(place[:2])
                if queue is None or place in hits or len(hits) >= limit:
                    continue
                message = _message_at(provider, queue, item, key, on_finding, is_id=is_id)
                if message is not None and since_ms <= message.store_timestamp_ms < until_ms:
                    hits[place] = Hit(queue, message)
            if len(hits) >= limit:
                break
    return [hits[place] for place in sorted(hits)]


def find_by_message_id(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    queues: Sequence[QueueFiles],
    message_id: str,
    *,
    since_ms: int = FIRST_MS,
    until_ms: int = LAST_MS,
    limit: int = 64,
    unsealed: UnsealedFiles | None = None,
    on_finding: OnFinding = raise_on_damage,
) -> list[Hit]:
    """Return all messages with the UNIQ_KEY `message_id`, stored within [since, until). If there
    are none, return those with this offset message id *in the tier*. The offset in such an id is in
    the queue's own log (as `cat` prints), so several queues may have a match."""
    found: list[Hit] = []
    for topic in sorted({queue.topic for queue in queues}):
        if len(found) < limit:
            found += find_by_key(
                provider,
                catalogue,
                queues,
                topic,
                message_id,
                since_ms=since_ms,
                until_ms=until_ms,
                limit=limit - len(found),
                is_id=True,
                unsealed=unsealed,
                on_finding=on_finding,
            )
    if not found and is_offset_message_id(message_id):
        _, _, physical_offset = parse_offset_message_id(message_id)
        for queue in queues:
            message = _message_starting_at(provider, queue, physical_offset, on_finding)
            if (
                message is not None
                and message.offset_message_id == message_id.upper()
                and since_ms <= message.store_timestamp_ms < until_ms
            ):
                found.append(Hit(queue, message))
    return found[:limit]


def has_key(message: StoredMessage, key: str, *, is_id: bool) -> bool:
    """Return whether a message has a key. `is_id`: only UNIQ_KEY counts."""
    return message.uniq_key == key if is_id else key in keys_to_index(message.properties_bytes)


def _items(
    provider: SegmentProvider,
    extents: Sequence[SegmentExtent],
    unsealed: UnsealedFiles | None,
    wanted: Wanted,
    on_finding: OnFinding,
) -> Iterator[list[IndexItem]]:
    """Yield the items of each index file, newest file first. If files were merged since the
    listing, list the tier again."""
    if unsealed is not None:
        for path in sorted(unsealed.directory.glob("[0-9]*"), reverse=True):
            try:
                yield _read_unsealed_items(path, unsealed, wanted)
            except Corrupt as error:
                on_finding(damage("index-unreadable", str(error)))
    waiting, searched = list(extents), set[SegmentId]()
    while waiting:
        extent = waiting.pop()
        searched.add(extent.id)
        file, _ = open_index_file(provider, extent)
        try:
            yield run(file.find(wanted))
        except Corrupt as error:
            listed = [one for one in provider.list(extent.id.path) if one.id.type is extent.id.type]
            if extent.id in {one.id for one in listed}:
                on_finding(damage("index-unreadable", str(error), extent.id))
            else:
                now = sort_by_base([SegmentExtent(one.id, one.size_bytes, one) for one in listed])
                waiting = [one for one in now if one.id not in searched]
        finally:
            file.close()


def _message_at(
    provider: SegmentProvider,
    queue: QueueFiles,
    item: IndexItem,
    key: str,
    on_finding: OnFinding,
    *,
    is_id: bool,
) -> StoredMessage | None:
    """Return the message of an index item, or None if it does not exist or lacks the key."""
    place, size = np.array([item.offset]), np.array([item.size])
    with open_queue(provider, queue) as reader:
        if not find_whole_records(queue, place, size)[0]:
            _tell_missing(reader, place, size, on_finding)
            return None
        data = reader.commit_log.prepare_checked(item.offset, item.size)()
        try:
            message = decode_record(data)
        except Corrupt:
            # The item may be older than the bytes that are there now.
            return None
        fits = message.size == item.size and message.physical_offset == item.offset
        if not fits or message.topic != queue.topic:
            return None
        if not has_key(message, key, is_id=is_id):
            return None
        return _check_message(reader, message, item.offset, on_finding)


def _tell_missing(reader: QueueReader, place: Int64s, size: Int64s, on_finding: OnFinding) -> None:
    """Report a message that has a unit but is not complete in any segment. An item without a unit
    is not reported, because its message has expired or belonged to a deleted topic of the same
    name."""
    [offset], [length] = place.tolist(), size.tolist()
    if offset < reader.queue.commit_log_min_offset:
        return
    for start, end in reader.queue.unit_spans():
        for number in find_places(reader, start, end, place, place + size).numbers.tolist():
            if int(reader.read_units(number, 1)[0]["size"]) == length:
                on_finding(make_unusable_finding(reader, offset, length, number, number))


def _check_message(
    reader: QueueReader, message: StoredMessage, offset: int, on_finding: OnFinding
) -> StoredMessage | None:
    """Return the message if its body has the right CRC and a unit refers to it. Otherwise report
    damage and return None."""
    reason = ""
    try:
        message.check_body()
    except Corrupt as error:
        reason = str(error)
    if message.queue_id != reader.queue.queue_id or not _is_named(reader, message, offset):
        reason = (
            f"no consume queue unit names it as message {message.queue_offset} of queue "
            f"{message.queue_id}"
        )
    if not reason:
        return message
    extent = reader.commit_log.extent_at(offset)
    on_finding(
        damage(
            "record-found",
            f"a message that was found is damaged: {reason}",
            None if extent is None else extent.id,
            None if extent is None else offset - extent.base_offset,
            message.queue_offset,
        )
    )
    return None


def _is_named(reader: QueueReader, message: StoredMessage, offset: int) -> bool:
    spans = reader.queue.unit_spans()
    if not any(start <= message.queue_offset < end for start, end in spans):
        return False
    unit = reader.read_units(message.queue_offset, 1)[0]
    # An old unit may name the coda in front of the message.
    named = int(unit["physical_offset"])
    return named in (offset, offset - CODA_SIZE) and int(unit["size"]) == message.size


def _message_starting_at(
    provider: SegmentProvider, queue: QueueFiles, physical_offset: int, on_finding: OnFinding
) -> StoredMessage | None:
    """Return the message that starts at the given byte of the queue's commit log according to its
    unit. Lost units are reported."""
    with open_queue(provider, queue) as reader:
        for start, end in queue.unit_spans():
            offset = bisect.bisect_left(
                range(start, end),
                physical_offset,
                key=lambda unit: int(reader.read_units(unit, 1)[0]["physical_offset"]),
            )
            if start + offset >= end:
                continue
            unit = reader.read_units(start + offset, 1)[0]
            if int(unit["physical_offset"]) != physical_offset:
                continue
            place, size = np.array([physical_offset]), np.array([int(unit["size"])])
            if not find_whole_records(queue, place, size)[0]:
                continue
            message = decode_record(
                reader.commit_log.prepare_checked(physical_offset, int(unit["size"]))(),
                tags_code=int(unit["tags_code"]),
            )
            return _check_message(reader, message, physical_offset, on_finding)
        for low, high in find_lost_units(reader):
            on_finding(make_lost_finding(queue, low, high))
    return None


def _read_unsealed_items(path: Path, files: UnsealedFiles, wanted: Wanted) -> list[IndexItem]:
    """Read the items of a local file that its owner may be writing, with pread instead of a
    mapping."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # uploaded meanwhile
        return []
    except OSError as error:
        raise translate_os_error(error, "read", path, invalid=RETRY_LATER) from error
    try:
        head = os.pread(fd, tiered.HEADER_SIZE, 0)
        if not any(head):
            return []  # its owner is creating it
        size = os.fstat(fd).st_size
        configured, first = (files.slots, files.max_items), 1
        known = files.states.get(int(path.name)) if path.name.isdecimal() else None
        capacity: tuple[int, int] | None = configured
        if size == first_design_size(*configured):
            first = 0
            # Its times are milliseconds, and wrong for IPv6 hosts.
            wanted = wanted.at_any_time()
        else:
            capacity = find_capacity(size, known, configured)
        if capacity is None:
            raise Corrupt(
                f"{path}: {size} bytes do not fit {files.slots} slots and {files.max_items} items. "
                "Give the broker's configuration with --config",
                path=str(path),
            )
        header = tiered.unpack_header(head)
        found: list[IndexItem] = []
        for key_hash in wanted.hashes:
            items = np.array(
                list(_chain(fd, capacity[0], key_hash, first, header.items)),
                dtype=tiered.ITEM_DTYPE,
            )
            found += wanted.select(items, key_hash, header.begin_timestamp_ms)
        return found
    finally:
        os.close(fd)


def _chain(fd: int, slots: int, key_hash: int, first: int, items: int) -> Iterable[tuple[int, ...]]:
    """Yield the items of a key's hash slot, newest first, until a link does not lead to an older
    item. `first`: number of the file's first item."""
    slot = os.pread(fd, 4, tiered.HEADER_SIZE + key_hash % slots * tiered.SLOT_SIZE)
    number, limit = int.from_bytes(slot, "big", signed=True), first + items
    for _ in range(MAX_CHAIN_ITEMS):
        if not first <= number < limit:
            return
        data = os.pread(fd, tiered.ITEM_SIZE, tiered.item_position(slots, number))
        if len(data) < tiered.ITEM_SIZE:
            return
        item: tuple[int, ...] = np.frombuffer(data, tiered.ITEM_DTYPE)[0].item()
        yield item
        number, limit = item[-1], number
