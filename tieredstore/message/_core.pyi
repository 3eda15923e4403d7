"""The compiled core (`_core.c`, `_index.c`, `_puts.c`): each function makes the bytes that its twin
in Python makes.

None: not plain, or wrong; the twin has to do it, or to say what is wrong (`create_message` calls
its twin itself).
"""

from collections.abc import Callable, Sequence
from typing import Any

from tieredstore.message.encoding import Message

VERSION: int

def configure(
    message_type: type[Any],
    crc32: Callable[[bytes], int],
    large_crc32: Callable[[bytes], int],
    create: Callable[..., Message],
    localhost: bytes,
    /,
) -> None:
    """Say what messages are (a Struct with the fields of `Message`), what computes a CRC-32, of
    more than `RELEASING_BYTES` (`message/crc.py`) too, what makes the messages that
    `create_message` does not make, and the born host of the others. Raises TypeError when the
    fields are not where they can be read."""

def configure_puts(
    appender_type: type[Any],
    commit_log_type: type[Any],
    queue_type: type[Any],
    result_type: type[Any],
    put_ok: object,
    durable: object,
    system_clock: object,
    /,
) -> None:
    """Say where `put_message` finds what it needs: types with the slots that a `MessageAppender`, a
    `CommitLog` and a `QueueState` have, what the results of puts are and the values in them, and
    the function of the clock that is the machine's. Raises TypeError when there is no such slot."""

def put_message(appender: Any, message: Message, /) -> Any:
    """Put one message: a method of appenders. What is not plain, and what cannot be put now, is
    left to the appender's `put_in_python`. The twin is `MessageAppender.put`."""

def append_records(
    view: memoryview,
    inside: int,
    limit: int,
    template: bytes,
    max_body_bytes: int,
    messages: Sequence[object],
    queue_offset: int,
    position: int,
    timestamp_ms: int,
    number: int,
    topic: str,
    /,
) -> tuple[int, tuple[int | bytes, ...]] | None:
    """Write the records of a plain batch at byte `inside` of a view, all or none, if they end at
    `limit` or before; returns `position` behind them, and their rows for the dispatch: number, head
    (88 bytes) and properties of each. The twin is `MessageAppender.put_batch`.

    template: head and topic field (`PlainTemplate.make_record`); limit: bytes of the view; number:
    of the queue; topic: of all messages, as is the queue id in the template.
    """

def encode_properties(properties: object, /) -> bytes | None:
    """Encode a dict of ASCII texts. The twin is `message.properties.encode_properties`."""

def create_message(*args: Any, **values: Any) -> Message:
    """Make a message: `Message.create`, which is called for what is not plain (`configure`)."""

def index_entries(
    properties: list[bytes], numbers: object, prefixes: object, /
) -> tuple[bytes, bytes, bytes] | None:
    """Compute tags codes (int64), and rows (int64) and hashes (int32) of the index entries of
    messages with ASCII keys and tags. The twin is `local.index.keys.index_entries`.

    numbers: int64[n], of the topics; prefixes: uint32[topics, 2], hashes of `topic#` and
    `topic#T#`.
    """

def walk_records(buffer: object, start: int, end: int, /) -> tuple[bytes, int]:
    """Find the positions (int64) of the records that follow each other from `start` on and end
    within `end`, and the byte behind the last of them. The twin is
    `message.columns.walk.walk_records`. Raises ValueError for a range outside of the buffer."""

def copy_runs(view: memoryview, base: int, starts: object, ends: object, /) -> bytearray | None:
    """Copy runs [start, end) (int64) of a view whose first byte is `base`, one behind the other;
    other threads run meanwhile. The twin is `local.log.gathering.copy_runs`."""

def put_items(
    buffer: bytearray | memoryview,
    slots: int,
    hashes: object,
    physical_offsets: object,
    store_timestamps: object,
    /,
) -> int | None:
    """Put items in an index file: int32, int64 and int64 [n]; returns how many fitted. The twin is
    `message.index.local.put_items`."""

def key_hashes(buffer: object, positions: object, before: int, /) -> tuple[bytes, bytes] | None:
    """Find the keys that the tier indexes, of good records with ASCII keys at those positions
    (int64): the row of each (int64) and its hash (int32). The twin is
    `message.columns.keys.key_hashes`. before: the hash of `topic#`, modulo 2^32."""

def put_tiered_items(
    buffer: bytearray | memoryview,
    slots: int,
    topic_id: int,
    queue_id: int,
    hashes: object,
    offsets: object,
    sizes: object,
    store_timestamps: object,
    /,
) -> int | None:
    """Put items of one queue in an unsealed index file of a tier, all or none: int32, int64, int32
    and int64 [n]; returns how many. The twin is `message.index.tiered.put_items`."""
