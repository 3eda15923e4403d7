"""Compares a store's consume queues with its log, and builds the missing units."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, Invalid, TieredStoreError
from tieredstore.local.log.foreign_log import ForeignCommitLog
from tieredstore.local.queues.foreign import ForeignQueues
from tieredstore.local.queues.interface import ConsumeQueueReader, QueueUnits
from tieredstore.local.queues.missing import records
from tieredstore.local.queues.missing.choice import FOUND_DTYPE, choose_units, find_ends
from tieredstore.local.queues.missing.completed import CompletedQueue
from tieredstore.local.queues.missing.spilled_rows import Late, Rows, Spill, SpilledRows, find_late
from tieredstore.local.queues.topic_deletion import TopicDeletion
from tieredstore.local.queues.topic_deletions import TopicDeletions
from tieredstore.message.names import LMQ_PREFIX, is_system_topic
from tieredstore.message.record import StoredMessage
from tieredstore.skipped_records import SkippedRecords

_NO_LIMIT_MS: Final = 2**63 - 1
_NAMED: Final = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """Messages [from_offset, until_offset) of a queue that had no units."""

    key: QueueKey
    from_offset: int
    until_offset: int
    first_position: int

    def fields(self) -> dict[str, object]:
        """Return the fields for a JSON report."""
        return {
            "topic": self.key.topic,
            "queue_id": self.key.queue_id,
            "from_offset": self.from_offset,
            "until_offset": self.until_offset,
        }


class JointSpan(NamedTuple):
    """Batch records (records of several messages) of one queue. `first`, `last`: positions of the
    first and last record in the log (bytes). `from_offset`, `until_offset`: range of the queue
    offsets of their messages."""

    first: int
    last: int
    from_offset: int
    until_offset: int


@dataclass(slots=True)
class Comparison:
    """Messages that are in the log of a store but not in its queues.

    `built`: runs of units built from the log.
    `unreadable`: queues whose units cannot be read, so that only the log is used.
    `unread`: parts of the log without records, where messages may have been.
    `deleted`: topics that have messages, but neither a queue nor an entry among the topics.
    `joint_topics`: topics with records of several messages or with units in another format.
    `joints`: positions of such records without a unit.
    `late`: messages with a store time after the limit.
    """

    built: list[Built] = field(default_factory=list)
    unreadable: dict[QueueKey, TieredStoreError] = field(default_factory=dict)
    unread: list[records.Unread] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    joint_topics: set[str] = field(default_factory=set)
    joints: dict[QueueKey, JointSpan] = field(default_factory=dict)
    runs: dict[QueueKey, list[ConsumeQueueReader]] = field(default_factory=dict)
    late: dict[QueueKey, Late] = field(default_factory=dict)
    lost_ends: list[records.Misplaced] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether the queues have all messages of the log."""
        return not (self.built or self.unreadable or self.unread)

    @property
    def first_position(self) -> int | None:
        """Position in the log (bytes) of the first message without a unit, or None."""
        return min((one.first_position for one in self.built), default=None)


def compare_queues(
    log: ForeignCommitLog,
    queues: ForeignQueues,
    *,
    delays_ms: tuple[int, ...],
    has_topic: Callable[[str], bool] | None = None,
    is_special: Callable[[str], bool] = lambda _: False,
    is_plain: Callable[[str], bool] = lambda _: False,
    limit_ms: int = _NO_LIMIT_MS,
    end: int | None = None,
    is_lost: Callable[[int], bool] = lambda _: False,
    scratch: Path | None = None,
) -> Comparison:
    """Compare the queues with the log, up to the log offset `end`, and up to the first message with
    a store time after `limit_ms`.

    `has_topic`: returns whether the broker has a topic (default: always).
    `is_special`: returns whether the units of a topic have another format.
    `is_plain`: returns whether the units of a topic certainly have the plain format.
    `is_lost`: returns whether the bytes at an offset, after the log's end, were a message.
    `scratch`: folder for units that exceed memory, as in `Spill`.

    Raises Unavailable, and Exhausted if there is no space.
    """
    found = Comparison()
    while True:
        opened = _open_queues(queues, found, is_special)
        spill = Spill(scratch)
        groups: dict[QueueKey, SpilledRows] = {}
        deletions: list[StoredMessage] = []
        misplaced: list[records.Misplaced] = []
        found.unread.clear()
        try:
            until = log.readable_offset if end is None else min(end, log.readable_offset)
            spans = records.find_uncovered(log, opened.values(), until)
            _collect(log, spans, delays_ms, found, groups, deletions, misplaced, spill)
            # A topic that no table describes is ordinary if it has ordinary messages too.
            plain = {key.topic for key in (*opened, *groups) if not is_special(key.topic)}
            plain |= set(filter(is_plain, found.joint_topics))
            unexpected = _take_unexpected(found, plain)
        except records.UnreadableQueues as error:
            found.unreadable |= error.errors
            continue
        break
    late = _find_first_late(groups, limit_ms)
    ends = [0, *(_last_position(queue) for queue in opened.values())]
    ends = [one for one in ends if one < until]  # others are of false units
    ends += [int(rows[len(rows) - 1]["unit"]["physical_offset"]) for rows in groups.values()]
    # The log ends after the last known record, regardless of the bytes after it.
    found.unread = [
        one
        for one in found.unread
        if (one.begin < max(ends) or is_lost(one.begin)) and (late is None or one.begin < late)
    ]
    found.unread += [one for one in unexpected if late is None or one.begin < late]
    for key in [key for key in found.unreadable if key.topic in found.joint_topics]:
        del found.unreadable[key]
    deleted_before = _find_deletions(deletions, opened, log)
    for key, rows in sorted(groups.items(), key=lambda item: item[0]):
        if is_special(key.topic):
            found.joint_topics.add(key.topic)
            continue
        queue = opened.get(key)
        before = deleted_before(key.topic)
        runs, contradictions, wrong = choose_units(key, rows, queue, log, before, late, spill)
        held_back = None if late is None else find_late(rows, max(before + 1, late))
        if not runs and held_back is None and not contradictions:
            continue
        is_fixed = key.topic.startswith(LMQ_PREFIX) or is_system_topic(key.topic)
        is_known = is_fixed or has_topic is None or has_topic(key.topic)
        if not is_known and queue is None and key not in found.unreadable:
            found.deleted.add(key.topic)
            continue
        found.unread += contradictions
        places = zip(wrong["unit"]["physical_offset"], wrong["unit"]["size"], strict=True)
        misplaced += [records.Misplaced(key, int(at), int(size)) for at, size in places]
        if held_back is not None:
            found.late[key] = held_back
        if not runs:
            continue
        found.runs[key] = list(runs)
        for run in runs:
            unit = run.unit(run.min_offset)
            position = 0 if unit is None else unit[0]
            found.built.append(Built(key, run.min_offset, run.max_offset, position))
    if late is None:
        found.lost_ends = _find_lost_ends(misplaced, opened, found.runs, log)
    return found


def _find_lost_ends(
    misplaced: list[records.Misplaced],
    opened: dict[QueueKey, ConsumeQueueReader],
    runs: dict[QueueKey, list[ConsumeQueueReader]],
    log: ForeignCommitLog,
) -> list[records.Misplaced]:
    """Return the damaged messages that lie in the log after all other messages of their queue."""
    found = []
    known: dict[QueueKey, tuple[int, int]] = {}
    for one in sorted(misplaced, key=lambda one: one.position):
        queues = (opened.get(one.key), *runs.get(one.key, ()))
        ends = (queue and find_ends(one.key, queue, log) for queue in queues)
        lasts = ((it.last_end, it.last_offset) for it in ends if it)
        end, last = known.get(one.key) or max(lasts, default=(-1, -1))
        if 0 <= end <= one.position:
            found.append(one._replace(offset=last + 1))
            known[one.key] = one.position + one.size, last + 1
    return found


def warn_of_missing(found: Comparison, place: str) -> None:
    """Log warnings about missing units."""
    count = sum(one.until_offset - one.from_offset for one in found.built)
    if count:
        names = sorted({f"{one.key.topic}/{one.key.queue_id}" for one in found.built})
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        _log.warning(
            "%s: %d messages of the commit log are in no consume queue. Their units are made from "
            "it: %s%s",
            place,
            count,
            ", ".join(names[:_NAMED]),
            more,
        )
    for key, error in sorted(found.unreadable.items()):
        _log.warning(
            "%s: consume queue %s/%d cannot be read, its units are made from the commit log: %s",
            place,
            *key,
            error,
        )
    for one in found.unread:
        _log.error("%s: %s", place, explain_unread(one))


def explain_unread(one: records.Unread) -> str:
    """Describe an unread part of the log, with the reason."""
    return (
        f"commit log at {one.begin}: {one.reason}. The {one.end - one.begin} bytes up to "
        f"{one.end} are in no consume queue and cannot be read"
    )


def _open_queues(
    queues: ForeignQueues, found: Comparison, is_special: Callable[[str], bool]
) -> dict[QueueKey, ConsumeQueueReader]:
    opened: dict[QueueKey, ConsumeQueueReader] = {}
    unreadable = found.unreadable
    for key in sorted(queues.list_queues()):
        if is_special(key.topic):
            found.joint_topics.add(key.topic)
            continue
        # A light queue shares its messages with the queue to which they were sent.
        if key.topic.startswith(LMQ_PREFIX) or key in unreadable:
            continue
        try:
            queue = queues.open_queue(key)
            if queue is not None and queue.min_offset < queue.max_offset:
                opened[key] = queue
        except (Corrupt, Invalid) as error:
            unreadable[key] = error
    return opened


def _collect(
    log: ForeignCommitLog,
    spans: Iterable[records.Uncovered],
    delays_ms: tuple[int, ...],
    found: Comparison,
    groups: dict[QueueKey, SpilledRows],
    deletions: list[StoredMessage],
    misplaced: list[records.Misplaced],
    spill: Spill,
) -> None:
    for span in spans:
        for one in records.find_records(log, span, delays_ms):
            if isinstance(one, QueueUnits):
                rows = groups.get(one.key)
                if rows is None:
                    rows = groups[one.key] = SpilledRows(spill, FOUND_DTYPE)
                rows.extend(_make_rows(one))
            elif isinstance(one, records.Unread):
                found.unread.append(one)
            elif isinstance(one, records.Misplaced):
                misplaced.append(one)
            elif isinstance(one, records.Joint):
                found.joint_topics.add(one.key.topic)
                first = JointSpan(one.position, one.position, one.from_offset, one.until_offset)
                known = found.joints.get(one.key, first)
                found.joints[one.key] = known._replace(
                    last=one.position, until_offset=one.until_offset
                )
            else:
                deletions.append(one)


def _take_unexpected(found: Comparison, plain: Collection[str]) -> list[records.Unread]:
    """Remove the batch records of topics that cannot contain batches from `found`, and return them
    as unread parts of the log. Otherwise, no other missing message of their topic would be
    found."""
    unexpected = []
    for key in [key for key in found.joints if key.topic in plain]:
        first, last, _, _ = found.joints.pop(key)
        found.joint_topics.discard(key.topic)
        reason = f"records of several messages in {key.topic}, which is no BatchCQ topic"
        unexpected.append(records.Unread(first, last + 1, reason))
    return unexpected


def _last_position(queue: ConsumeQueueReader) -> int:
    unit = queue.unit(queue.max_offset - 1)
    return 0 if unit is None else unit[0]


def _make_rows(group: QueueUnits) -> Rows:
    rows = np.empty(len(group.units), FOUND_DTYPE)
    rows["unit"] = group.units
    rows["store_timestamp"] = group.store_timestamps_ms
    rows["offset"] = group.offset + np.arange(len(rows))
    return rows


def _find_first_late(groups: dict[QueueKey, SpilledRows], limit_ms: int) -> int | None:
    """Return the position in the log (bytes) of the first message that may not be served yet,
    or None."""
    if limit_ms == _NO_LIMIT_MS:
        return None
    late = [
        int(rows["unit"]["physical_offset"][is_late].min())
        for found in groups.values()
        for rows in found.blocks()
        if (is_late := rows["store_timestamp"] > limit_ms).any()
    ]
    return min(late, default=None)


def _find_deletions(
    messages: list[StoredMessage], opened: dict[QueueKey, ConsumeQueueReader], log: ForeignCommitLog
) -> Callable[[str], int]:
    """Return a function that maps a topic to the log position of its last deletion (bytes), or -1.
    `messages`: deletion messages without a unit."""
    skipped = SkippedRecords()
    ends = {
        deletion.topic: one.physical_offset
        for one in messages
        if (deletion := TopicDeletion.parse(one, skipped)) is not None
    }
    known = TopicDeletions(
        lambda topic, number: opened.get(QueueKey(topic, number)), lambda: log, skipped
    )
    return lambda topic: max(ends.get(topic, -1), known.find_position(topic))


@dataclass(eq=False)
class ComparedQueues:
    """`ForeignQueues` of a store, completed with missing units from its log."""

    _queues: ForeignQueues
    _found: Comparison
    _place: str

    def list_queues(self) -> Iterable[QueueKey]:
        joint = self._found.joint_topics
        found = {*self._queues.list_queues(), *self._found.runs}
        return {key for key in found if key.topic not in joint}

    def open_queue(self, key: QueueKey) -> ConsumeQueueReader | None:
        """Open one queue, or return None. Raises Corrupt if the queue is unreadable and has no
        messages in the log."""
        runs = self._found.runs.get(key)
        error = self._found.unreadable.get(key)
        if error is not None and not runs:
            raise error
        if key.topic in self._found.joint_topics:
            return None
        queue = None if error is not None else self._queues.open_queue(key)
        return queue if not runs else CompletedQueue(queue, runs, self._place)

    def close(self) -> None:
        self._queues.close()
