"""`tier skip` and `tier reset`: a queue continues at another offset."""

from __future__ import annotations

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.operating.delete import count_messages
from tieredstore.jobs.operating.effect import Effect
from tieredstore.jobs.operating.part import open_part, remove_segments
from tieredstore.scan.location import TierLocation


def skip_messages(
    location: TierLocation,
    topic: str,
    queue_id: int,
    to_offset: int,
    *,
    yes: bool = False,
    take_over: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, object]:
    """Make a queue continue at a later queue offset. The skipped offsets are a hole that readers
    skip. Existing messages stay. `yes`: skip, instead of only reporting. Raises the errors of
    `open_part`, Invalid for an offset that is not after the queue's end, and Corrupt for an
    unusable queue (see `reset_queues`)."""
    with open_part(location, writes=yes, take_over=take_over, clock=clock) as part:
        [key] = part.select(topic, queue_id)
        path = part.path(key)
        if (broken := part.flat_files.broken_queues.get(key)) is not None:
            raise Corrupt(f"{broken}. `tieredstore tier reset` empties it", path=path)
        file = part.flat_files.get(*key)
        if file is None or file.read_only_reason is not None or not file.is_initialised:
            reason = "has no segments" if file is None else file.read_only_reason
            raise Corrupt(
                f"{path}: {reason or 'has no segments'}. `tieredstore tier reset` empties it",
                path=path,
            )
        if lost := file.find_lost_ends():
            raise Corrupt(f"{lost[0]}. `tieredstore tier reset` empties the queue", path=path)
        end = file.consume_queue_max_offset
        if to_offset <= end:
            raise Invalid(
                f"{path}: --to {to_offset} is not after the queue's end, {end}. `tieredstore tier "
                "reset` goes back",
                path=path,
                offset=end,
            )
        if yes:
            file.skip_to(to_offset)
        return Effect().report(
            part,
            topic=topic,
            queue_id=queue_id,
            end_offset=end,
            to_offset=to_offset,
            left_out_messages=to_offset - end,
        )


def reset_queues(
    location: TierLocation,
    topic: str,
    *,
    queue_id: int | None = None,
    to_offset: int | None = None,
    yes: bool = False,
    take_over: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, object]:
    """Empty all queues of a topic, or one queue, even if they cannot be opened. The queues continue
    at their end or, for a single queue, at `to_offset`. `yes`: reset, instead of only reporting.
    Commit log offsets are never reused, so that no key and no message id refers to another message.
    After an interrupted reset, a queue is unchanged, has only its newest messages, or is empty, and
    the reset can be repeated. Raises the errors of `open_part`, and Invalid."""
    with open_part(location, writes=yes, take_over=take_over, clock=clock) as part:
        keys = part.select(topic, queue_id)
        if to_offset is not None and queue_id is None:
            raise Invalid("--to is the offset of one queue: give --queue")
        effect = Effect()
        undeleted = 0
        for key in keys:
            going = [one for one in part.list_segments(key) if part.holds_bytes(one)]
            effect.add(key, going, count_messages(part, key), part.listings)
        if yes:
            remove_segments(part, keys)  # Failures are retried, and raised then.
            for key in keys:
                part.flat_files.begin_anew(*key, to_offset)
            undeleted = part.flat_files.sweep_deleted()
        return effect.report(part, topic=topic, to_offset=to_offset, undeleted=undeleted)
