"""`tier delete`: delete a topic from the tier."""

from __future__ import annotations

from collections.abc import Iterable

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.operating.effect import Effect
from tieredstore.jobs.operating.part import TierPart, open_part
from tieredstore.local.queues.kinds import find_queues_of
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.location import TierLocation
from tieredstore.tier.flat.deletion import mark_deleted
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.index.service import DIRECTORY
from tieredstore.tier.index.watermarks import load_watermarks, save_watermarks


def delete_topic(
    location: TierLocation,
    topic: str,
    *,
    yes: bool = False,
    take_over: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, object]:
    """Delete a topic from the tier and its metadata, including queues that cannot be opened and
    segments that are missing in the metadata. `yes`: delete, instead of only reporting. Uploads of
    the topic must be disabled first. Otherwise a recreated topic would reuse the offsets with
    another id, and a Java broker would miss keys. Raises the errors of `open_part`, and Invalid for
    a missing topic, or a topic in the local store."""
    with open_part(location, writes=yes, take_over=take_over, clock=clock) as part:
        keys = part.select(topic)
        _refuse_local(part, topic)
        effect = Effect()
        for key in keys:
            effect.add(key, part.list_segments(key), count_messages(part, key), part.listings)
        undeleted = 0
        if yes:
            forget_keys(part, keys)  # while the metadata knows the topic's id
            # One write records all deletions before any object is deleted. Otherwise the whole
            # metadata would be rewritten for each queue.
            with part.metadata.batch():
                for file in part.flat_files.files():
                    if file.topic == topic:
                        segments = (*file.consume_queue.segments, *file.commit_log.segments)
                        mark_deleted(part.metadata, segments, clock.now_ms())
            with part.metadata.batch():
                part.flat_files.destroy_topics({topic})
            undeleted = part.flat_files.sweep_deleted()
        return effect.report(part, topic=topic, undeleted=undeleted)


def _refuse_local(part: TierPart, topic: str) -> None:
    place = find_queues_of(part.state, topic)
    if place is not None:
        raise Invalid(
            f"{place}: the local store still has topic {topic!r}, and would upload it again. "
            "`tieredstore topic delete` deletes it in a running broker and in its tier. "
            "`tieredstore tier reset` empties its queues in the tier",
            path=str(place),
            topic=topic,
        )


def count_messages(part: TierPart, key: QueueKey) -> int:
    """Return the number of readable messages of a queue, or of its units if it cannot be opened."""
    file = part.flat_files.get(*key)
    if file is not None:
        return count_readable(file, file.consume_queue_commit_offset)
    sizes = (entry.size for entry in part.metadata.segments(part.path(key)) if is_units(entry.id))
    return sum(sizes) // UNIT_SIZE


def count_readable(file: FlatMessageFile, until_offset: int) -> int:
    """Return the number of readable messages of a queue before the queue offset `until_offset`."""
    first = min(file.consume_queue_min_offset, until_offset)
    lacking = (min(end, until_offset) - max(begin, first) for begin, end in file.holes)
    return until_offset - first - sum(max(count, 0) for count in lacking)


def is_units(segment: SegmentId) -> bool:
    return segment.type is FileSegmentType.CONSUME_QUEUE


def forget_keys(part: TierPart, keys: Iterable[QueueKey]) -> None:
    """Delete the watermarks of queues. Raises Invalid, Unavailable."""
    directory = part.state / DIRECTORY
    try:
        marks = load_watermarks(directory)
    except Corrupt:
        return  # The index is opened without it.
    gone = set()
    for key in keys:
        entry = part.metadata.topic(key.topic)
        if entry is not None:
            gone.add((entry.topic_id, key.queue_id))
    if gone.isdisjoint(marks.indexed_until):
        return
    for one in gone:
        marks.indexed_until.pop(one, None)
    save_watermarks(directory, marks)
