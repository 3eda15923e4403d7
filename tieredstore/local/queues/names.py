"""Names of consume queues."""

from __future__ import annotations

from typing import Final

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt
from tieredstore.message.names import MAX_NAME_BYTES

_SHORT: Final = 32
"""Maximum number of characters of a topic in an error message."""


def can_be_folder(name: str) -> bool:
    """Return whether a name is a valid folder name."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def find_queue_fault(topic: str, queue_id: int) -> str | None:
    """Return why the queue of a record is invalid, or None. Invalid queues exist because the timer
    of a Java broker delivers to any topic and queue that a client names."""
    if not can_be_folder(topic):
        return f"topic {topic[:_SHORT]!r}: expected a name that can be a folder's"
    if queue_id < 0:
        return f"topic {topic[:_SHORT]!r}: expected a queue id from 0 on, found {queue_id}"
    return None


def find_folder_fault(topic: str, queue_id: int) -> str | None:
    """Return why a queue cannot be stored in files, or None."""
    size = len(topic.encode(errors="replace"))
    if size > MAX_NAME_BYTES:
        return f"topic {topic[:_SHORT]!r}…: expected at most {MAX_NAME_BYTES} bytes, found {size}"
    return find_queue_fault(topic, queue_id)


def check_queue_name(key: QueueKey) -> None:
    """Raise Corrupt for an invalid queue. This applies even if the store's queues are not in
    folders, because a tier has a folder for each topic."""
    fault = find_queue_fault(*key)
    if fault is not None:
        raise Corrupt(f"a record of {fault}", topic=key.topic, queue_id=key.queue_id)
