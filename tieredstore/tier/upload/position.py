"""Where a queue of the tier stands against the local one, before anything is added to it."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import DispatchSource, QueueKey, QueueRange
from tieredstore.errors import Corrupt
from tieredstore.message import layout
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.reading import run

_log = logging.getLogger(__name__)


def check_not_ahead(key: QueueKey, file: FlatMessageFile, available: QueueRange) -> None:
    """Raise Corrupt when the tier has messages that the local store has not (D24)."""
    current = file.consume_queue_max_offset
    if current > available.max_offset:
        raise Corrupt(
            f"{file.path}: the tier has messages up to queue offset {current}, the local store "
            f"only up to {available.max_offset}: it lost messages, or is another store",
            topic=key.topic,
            queue_id=key.queue_id,
            offset=available.max_offset,
            path=file.path,
        )


def check_last_message(
    source: DispatchSource, key: QueueKey, file: FlatMessageFile, available: QueueRange
) -> None:
    """Raise Corrupt unless the last message in the tier is the one that the local store has at its
    offset. Where one of the two cannot be read, their units tell."""
    offset = file.consume_queue_commit_offset - 1
    if not available.min_offset <= offset < available.max_offset:
        return
    tiered_units = run(file.read_units(offset, 1))
    local_units = source.read_units(key, offset, 1)
    if not len(tiered_units) or not len(local_units):
        return
    size = int(tiered_units["size"][0])
    position = int(tiered_units["physical_offset"][0])
    try:
        tiered = run(file.read_commit_log(position, size))
        local = b"".join(source.read_records(local_units))
    except Corrupt as error:
        if not _have_same_message(tiered_units, local_units):
            raise
        _log.error("%s: going on, as its unit is the local one: %s", file.path, error)
        return
    at = layout.PHYSICAL_OFFSET_POSITION
    if tiered[:at] != local[:at] or tiered[at + 8 :] != local[at + 8 :]:
        raise Corrupt(
            f"{file.path}: the message of queue offset {offset} in the tier is not the one in "
            "the local store; nothing is uploaded behind it",
            topic=key.topic,
            queue_id=key.queue_id,
            offset=offset,
            path=file.path,
        )


def _have_same_message(
    tiered_units: npt.NDArray[np.void], local_units: npt.NDArray[np.void]
) -> bool:
    """Whether the first units tell the same of a message: all but its place."""
    return all(tiered_units[name][0] == local_units[name][0] for name in ("size", "tags_code"))
