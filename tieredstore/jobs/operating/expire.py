"""`tier expire`: delete messages older than a given time, regardless of the retention."""

from __future__ import annotations

from collections.abc import Sequence

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.jobs.operating.delete import count_readable
from tieredstore.jobs.operating.effect import Effect
from tieredstore.jobs.operating.part import TierPart, open_part, remove_segments
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.location import TierLocation
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.flat.segments import FlatSegment
from tieredstore.tier.reading import run


def expire_queues(
    location: TierLocation,
    topics: Sequence[str],
    before_ms: int,
    *,
    queue_id: int | None = None,
    yes: bool = False,
    take_over: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, object]:
    """Delete the first segments whose newest message was stored before `before_ms`. Offsets stay
    the same. An old message stays as long as its segment has a newer one. `topics`: empty for all.
    `yes`: delete, instead of only reporting. A queue that fails is among the report's problems and
    does not stop others. Raises the errors of `open_part`, and Fenced if epoch ownership is
    lost."""
    with open_part(location, writes=yes, take_over=take_over, clock=clock) as part:
        keys = [key for topic in topics for key in part.select(topic, queue_id)]
        effect = Effect()
        undeleted = 0
        for key in keys if topics else part.list_queues():
            try:
                if (error := part.flat_files.broken_queues.get(key)) is not None:
                    raise error
                if (file := part.flat_files.get(*key)) is not None:
                    _add(effect, part, key, file, before_ms)
            except TieredStoreError as error:
                effect.problems[part.path(key)] = str(error)
        if yes:
            going = [queue.key for queue in effect.queues]
            for path, failure in remove_segments(part, going, before_ms).items():
                effect.problems[path] = str(failure)
            undeleted = part.flat_files.sweep_deleted()
        return effect.report(part, before_timestamp=before_ms, undeleted=undeleted)


def _add(
    effect: Effect, part: TierPart, key: QueueKey, file: FlatMessageFile, before_ms: int
) -> None:
    units = file.consume_queue.find_expired(before_ms)
    log = file.commit_log.find_expired(before_ms)
    if not units and not log:
        return
    try:
        messages = _count_messages(file, units, log)
    except (Corrupt, Unavailable):  # Unreadable segments are deleted as well.
        messages = sum(segment.commit_position for segment in units) // UNIT_SIZE
    going = [segment.file.id for segment in (*units, *log)]
    effect.add(key, going, messages, part.listings)


def _count_messages(
    file: FlatMessageFile, units: Sequence[FlatSegment], log: Sequence[FlatSegment]
) -> int:
    """Count the messages that become unreadable when the given segments are deleted, because their
    unit or their record is in one of them. `units`, `log`: the first segments of the consume queue
    and of the commit log."""
    end = units[-1].end_offset // UNIT_SIZE if units else 0
    if log:
        left = run(file.offset_of_position(log[-1].end_offset))
        end = max(end, file.consume_queue_commit_offset if left is None else left)
    return count_readable(file, max(end, file.consume_queue_min_offset))
