"""What happens to the messages of a queue that a group receives, as it is journaled.

`QueueProgress.apply` is the only place where an event has an effect, when it happens and when it is
read again after a restart. `queue` is the number of the progress that it belongs to.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec


class Opened(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """A group begins with a queue at `offset`, or begins again: what was given out counts no
    more."""

    queue: int
    group: str
    topic: str
    queue_id: int
    offset: int


class Given(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Messages go out, invisible for others until `visible_at_ms` (epoch ms).

    next_offset: behind the last message that was read. waiting: offsets that were read but wait for
    earlier ones of their message group. message_groups: of `offsets` and then of `waiting`; none
    unless the group is FIFO. client_id: whose time the broker renews until `renew_until_ms`, empty
    for nobody. attempt_id: of the call.
    """

    queue: int
    generation: int
    visible_at_ms: int
    next_offset: int
    offsets: list[int]
    waiting: list[int]
    message_groups: list[str]
    client_id: str = ""
    renew_until_ms: int = 0
    attempt_id: str = ""


class Done(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """Messages are acknowledged, or gone otherwise."""

    queue: int
    offsets: list[int]


class Changed(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """A consumer says until when its message is invisible; it has a new handle."""

    queue: int
    offset: int
    generation: int
    visible_at_ms: int


class Renewed(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """Messages stay invisible longer, with the handles that they have."""

    queue: int
    offsets: list[int]
    visible_at_ms: int


class GivenBack(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """Messages did not reach their consumer: as if they had not gone out."""

    queue: int
    offsets: list[int]


class Advanced(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """All before `offset` is done: the group's offset was set by somebody else."""

    queue: int
    offset: int


class Closed(msgspec.Struct, array_like=True, tag=7, frozen=True):
    """The group, the topic or the queue is there no more."""

    queue: int


class Kept(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """An un-acknowledged message, in a snapshot."""

    queue: int
    offset: int
    attempts: int
    generation: int
    visible_at_ms: int
    message_group: str | None = None
    client_id: str = ""
    renew_until_ms: int = 0


class Attempted(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """What an attempt of a group got of a queue, in a snapshot."""

    queue: int
    generation: int
    attempt_id: str
    offsets: list[int]


class Counted(msgspec.Struct, array_like=True, tag=10, frozen=True):
    """The highest generation that was given to a delivery, in a snapshot. `queue` says nothing."""

    queue: int
    generation: int


Event: TypeAlias = (
    Opened
    | Given
    | Done
    | Changed
    | Renewed
    | GivenBack
    | Advanced
    | Closed
    | Kept
    | Attempted
    | Counted
)

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Event)
encode_event = _encoder.encode
decode_event = _decoder.decode
