"""Events that change a group's progress in a queue, and the journal frames that store them."""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from tieredstore.message.crc import raw_crc32


class Opened(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """A group starts reading a queue at `offset`, for the first time or again. Its earlier
    deliveries from this queue no longer count."""

    queue: int
    group: str
    topic: str
    queue_id: int
    offset: int


class Given(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Messages were delivered. They stay invisible to other consumers until `visible_at_ms` (epoch
    ms). `next_offset`: offset after the last message read. `waiting`: offsets of messages that were
    read but wait for earlier messages of their message group. `message_groups`: message groups of
    `offsets` and then of `waiting`, empty unless the consumer group is FIFO. `client_id`: client
    for which the messages are renewed until `renew_until_ms`, empty for no renewal. `attempt_id`:
    id of the receive call."""

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
    """Messages were acknowledged, or need no delivery for another reason."""

    queue: int
    offsets: list[int]


class Changed(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """A consumer changed the invisible time of a message, which gets a new receipt handle."""

    queue: int
    offset: int
    generation: int
    visible_at_ms: int


class Renewed(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """The invisible time of messages was extended. Their receipt handles stay valid."""

    queue: int
    offsets: list[int]
    visible_at_ms: int


class GivenBack(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """Messages did not reach their consumer. This delivery does not count."""

    queue: int
    offsets: list[int]


class Advanced(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """A client set the consumer offset, so all messages before `offset` are done."""

    queue: int
    offset: int


class Closed(msgspec.Struct, array_like=True, tag=7, frozen=True):
    """The group, the topic or the queue was deleted, which ends the progress."""

    queue: int


class Kept(msgspec.Struct, array_like=True, tag=8, frozen=True):
    """Unacknowledged message in a snapshot. `is_counted`: True if `attempts` includes the last
    delivery. `lowest_ms`, `highest_ms`: earliest and latest delivery time (epoch ms), missing in
    files of older releases."""

    queue: int
    offset: int
    attempts: int
    generation: int
    visible_at_ms: int
    message_group: str | None = None
    client_id: str = ""
    renew_until_ms: int = 0
    is_counted: bool = True
    lowest_ms: int = 0
    highest_ms: int = 0


class Attempted(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """Messages of one queue that a receive call (attempt) of a group got, in a snapshot."""

    queue: int
    generation: int
    attempt_id: str
    offsets: list[int]


class Counted(msgspec.Struct, array_like=True, tag=10, frozen=True):
    """Last delivery number (generation) assigned by the broker, in a snapshot. `queue` is
    unused."""

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


VERSION: Final = 2
PREFIX: Final = b"TSRECV\x00"
MAGIC: Final = PREFIX + bytes([VERSION])
"""First bytes of each file. The last of these bytes is the version of the format."""
MAX_FRAME_BYTES: Final = 16 << 20
END: Final = b""
"""Last frame of a snapshot, without content."""
_LENGTH: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">II")


class Tail(Enum):
    """Kind of bytes after the last valid frame of a file."""

    NOTHING = "nothing"
    ZEROS = "zeros"
    """Zeros up to the end of the file: the file grew, but no bytes were written to the new part."""
    TORN = "torn"
    """An incomplete frame, followed by zeros or nothing."""
    DAMAGED = "damaged"
    """A frame with invalid content, or zeros followed by other bytes."""


class Frames(NamedTuple):
    """Content of a file. `valid_bytes`: end of the last valid frame, in bytes. `fault`: description
    of the bytes after it, or "". `tail`: kind of these bytes."""

    payloads: list[bytes]
    valid_bytes: int
    fault: str = ""
    tail: Tail = Tail.NOTHING


def make_frame(payload: bytes) -> bytes:
    """Encode a payload of at most MAX_FRAME_BYTES as a frame."""
    length = _LENGTH.pack(len(payload))
    return length + _LENGTH.pack(raw_crc32(length + payload)) + payload


def find_version(data: bytes) -> int | None:
    """Return the format version of a file, or None if it is neither a journal nor a snapshot."""
    head = data[: len(MAGIC)]
    return head[-1] if len(head) == len(MAGIC) and head.startswith(PREFIX) else None


def split_frames(data: bytes, *, is_snapshot: bool) -> Frames:
    """Split a file of format 1 or 2 into payloads. A complete snapshot ends with END. Without it,
    the snapshot is torn or damaged. Never raises."""
    version = find_version(data)
    if version is None or not 0 < version <= VERSION:
        return _refuse_head(data, is_snapshot=is_snapshot)
    payloads: list[bytes] = []
    position = len(MAGIC)
    while position < len(data):
        payload = _read_frame(data, position, version, is_snapshot=is_snapshot)
        if payload is None:
            return _stop(data, payloads, position)
        payloads.append(payload)
        position += _HEAD.size + len(payload)
        if is_snapshot and payload == END:
            break
    if is_snapshot and (not payloads or payloads[-1] != END):
        return Frames(payloads, position, f"expected a last frame at {position}", Tail.TORN)
    rest = data[position:].strip(b"\0")
    if rest:
        return Frames(payloads, position, f"expected the end at {position}", Tail.DAMAGED)
    return Frames(payloads, position)


def _read_frame(data: bytes, position: int, version: int, *, is_snapshot: bool) -> bytes | None:
    start = position + _HEAD.size
    if start > len(data):
        return None
    length, crc = _HEAD.unpack_from(data, position)
    payload = data[start : start + length]
    if length > MAX_FRAME_BYTES or len(payload) != length:
        return None
    if version == 1:
        # An empty frame of format 1 is zeros. It is accepted only at the end of a snapshot, its
        # only place.
        if not length and not (is_snapshot and start == len(data)):
            return None
        return payload if raw_crc32(payload) == crc else None
    return payload if raw_crc32(data[position : position + _LENGTH.size] + payload) == crc else None


def _stop(data: bytes, payloads: list[bytes], position: int) -> Frames:
    """Return the frames before `position`, and classify the bytes after it. They are a torn tail if
    only zeros follow the frame at `position`, otherwise damage."""
    end = position + len(data[position:].rstrip(b"\0"))
    frame_end = position + _HEAD.size
    if frame_end <= len(data):
        length, _ = _HEAD.unpack_from(data, position)
        frame_end += min(length, MAX_FRAME_BYTES)
    if end == position:
        return Frames(
            payloads, position, f"expected a frame at {position}, found zeros", Tail.ZEROS
        )
    if end < frame_end or frame_end > len(data):
        return Frames(payloads, position, f"expected a frame at {position}, it is torn", Tail.TORN)
    fault = f"expected a frame at {position}, its checksum or length is wrong"
    return Frames(payloads, position, fault, Tail.DAMAGED)


def _refuse_head(data: bytes, *, is_snapshot: bool) -> Frames:
    written = data.rstrip(b"\0")
    if not written:
        if not data and not is_snapshot:
            return Frames([], 0)
        return Frames([], 0, f"expected frames, found {len(data)} zeros", Tail.ZEROS)
    # A part of it belongs to a file that was being created.
    is_torn = MAGIC.startswith(written) or (PREFIX + b"\x01").startswith(written)
    fault = f"expected {MAGIC!r} at 0, found {data[: len(MAGIC)]!r}"
    return Frames([], 0, fault, Tail.TORN if is_torn else Tail.DAMAGED)
