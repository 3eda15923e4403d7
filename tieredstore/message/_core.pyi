"""The compiled core (`_core.c`, `_index.c`, `_puts.c`).

Each function has a twin: the function in Python that makes the same bytes. A function of the core
returns None for input that it does not support, and for wrong input. The caller then calls the
twin, which does the work or raises the error. Only `create_message` and `put_message` call their
twins themselves.
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
    """Set the Python objects that the core uses. `message_type`: a Struct with the fields of
    `Message`. `crc32`, `large_crc32`: functions that compute a CRC-32. The second one is for more
    than `RELEASING_BYTES` (`message/crc.py`). `create`: twin of `create_message`. `localhost`:
    default born host of messages. Raises TypeError if a field of `message_type` is not a slot."""

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
    """Set the Python objects that `put_message` uses. `appender_type`, `commit_log_type`,
    `queue_type`: types with the slots of `MessageAppender`, `CommitLog` and `QueueState`.
    `result_type`: type of the results of puts. `put_ok`, `durable`: values in these results.
    `system_clock`: the function that reads the machine's clock, which the core replaces by a system
    call. Raises TypeError if a slot is missing."""

def put_message(appender: Any, message: Message, /) -> Any:
    """Put one message. This function becomes a method of appenders. It calls the appender's
    `put_in_python` for a message that it does not support or cannot put now. The twin is
    `MessageAppender.put`."""

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
    """Write the records of a plain batch into a view, all or none. Returns the commit log offset
    after the records, and three values for the dispatch of each record: the number of the queue,
    the head (88 bytes) and the properties. The twin is `MessageAppender.put_batch`.

    `inside`: byte of the view at which the first record begins. `limit`: byte of the view at which
    the last record must end at the latest. `template`: head and topic field
    (`PlainTemplate.make_record`). `position`: commit log offset of the first record. `number`:
    number of the queue. `topic`: topic of all messages. Their queue id is in the template.
    """

def encode_properties(properties: object, /) -> bytes | None:
    """Encode properties, given as a dict of ASCII texts. The twin is
    `message.properties.encode_properties`."""

def create_message(*args: Any, **values: Any) -> Message:
    """Create a message. The twin is `Message.create`. It is called for arguments that this function
    does not support."""

def index_entries(
    properties: list[bytes], numbers: object, prefixes: object, /
) -> tuple[bytes, bytes, bytes] | None:
    """Compute the tags codes (int64[n]) of n messages, and their index entries as two columns: row
    of the message (int64) and hash (int32). Keys and tags must be ASCII. The twin is
    `local.index.keys.index_entries`.

    `numbers`: int64[n], the number of each message's topic. `prefixes`: uint32[topics, 2], the
    hashes of `topic#` and `topic#T#` for each topic.
    """

def walk_records(buffer: object, start: int, end: int, /) -> tuple[bytes, int]:
    """Return the positions (int64) of the adjacent records that begin at `start` and end at `end`
    or before, and the position after the last one. The twin is `message.columns.walk.walk_records`.
    Raises ValueError for a range outside of the buffer."""

def copy_runs(view: memoryview, base: int, starts: object, ends: object, /) -> bytearray | None:
    """Copy runs [start, end) of a commit log into one buffer, in order. `starts`, `ends`: int64[n].
    `base`: commit log offset of the view's first byte. Releases the GIL. The twin is
    `local.log.gathering.copy_runs`."""

def put_items(
    buffer: bytearray | memoryview,
    slots: int,
    hashes: object,
    physical_offsets: object,
    store_timestamps: object,
    /,
) -> int | None:
    """Put n items into a local index file. Returns the number of items that fitted. The columns are
    int32[n], int64[n] and int64[n]. The twin is `message.index.local.put_items`."""

def key_hashes(buffer: object, positions: object, before: int, /) -> tuple[bytes, bytes] | None:
    """Return the tier's index entries for the records at the given positions (int64) as two
    columns: row of the record (int64) and hash of the key (int32). The records must be intact and
    their keys ASCII. `before`: hash of `topic#`, modulo 2^32. The twin is
    `message.columns.keys.key_hashes`."""

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
    """Put n items of one queue into an unsealed index file of a tier, all or none. Returns their
    number. The columns are int32[n], int64[n], int32[n] and int64[n]. The twin is
    `message.index.tiered.put_items`."""
