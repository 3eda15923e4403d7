"""`tier skip` and `tier reset`: a queue goes on at another offset, with or without what it has."""

from __future__ import annotations

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.operating.delete import count_messages
from tieredstore.jobs.operating.effect import Effect
from tieredstore.jobs.operating.part import open_part
from tieredstore.jobs.operating.removal import remove_segments
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
    """Let a queue go on at a later queue offset: the messages between its end and that are a hole,
    which readers pass. What the tier has stays. yes: do it; without, only say so.

    Raises what `open_part` raises, Invalid for an offset that is not behind the queue's end, and
    Corrupt for a queue that cannot be opened or written to, which `reset_queues` can help.
    """
    with open_part(location, writes=yes, take_over=take_over, clock=clock) as part:
        [key] = part.select(topic, queue_id)
        path = part.path(key)
        if (broken := part.flat_files.broken_queues.get(key)) is not None:
            raise Corrupt(f"{broken}; `tieredstore tier reset` empties it", path=path)
        file = part.flat_files.get(*key)
        if file is None or file.read_only_reason is not None or not file.is_initialised:
            reason = "has no segments" if file is None else file.read_only_reason
            raise Corrupt(
                f"{path}: {reason or 'has no segments'}; `tieredstore tier reset` empties it",
                path=path,
            )
        if lost := file.find_lost_ends():
            raise Corrupt(f"{lost[0]}; `tieredstore tier reset` empties the queue", path=path)
        end = file.consume_queue_max_offset
        if to_offset <= end:
            raise Invalid(
                f"{path}: --to {to_offset} is not behind the queue's end, {end}; `tieredstore tier "
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
    """Empty the queues of a topic, or one of them, whether it can be opened or not; they go on
    where they ended, or with `to_offset`, for one queue, there. yes: do it; without, only say what
    would go.

    Place in the commit log is never used again, so that no key and no message id comes to name
    another message. A reset that was cut off leaves a queue that is as it was, has its newest
    messages or none; it is run again. Raises what `open_part` raises, and Invalid.
    """
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
            remove_segments(part, keys)  # what fails is tried again, and raises then
            for key in keys:
                part.flat_files.begin_anew(*key, to_offset)
            undeleted = part.flat_files.sweep_deleted()
        return effect.report(part, topic=topic, to_offset=to_offset, undeleted=undeleted)
