"""Names that a consume queue can have."""

from __future__ import annotations

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt


def can_be_folder(name: str) -> bool:
    """Tell whether there can be a folder of this name."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def check_queue_name(key: QueueKey) -> None:
    """Raise Corrupt for a topic that can be no folder's name, whatever keeps the queues: a tier has
    folders of topics."""
    if not can_be_folder(key.topic):
        raise Corrupt(
            f"a record of topic {key.topic!r}: expected a name that can be a folder's",
            topic=key.topic,
            queue_id=key.queue_id,
        )
