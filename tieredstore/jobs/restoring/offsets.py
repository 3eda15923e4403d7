"""Consumer offsets of a broker whose local log is lost: none is behind the end of its queue.

An offset there is of messages that were consumed before they came to the tier. The queue gives out
the same offsets again, to new messages, which a consumer that went on there would never get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt
from tieredstore.java_json import quote_integer_keys

OFFSET_FILES: Final = ("consumerOffset.json", "lmqConsumerOffset.json")
_TABLE: Final = "offsetTable"
_LMQ_TABLE: Final = "lmqOffsetTable"
_Queues = dict[str, int]


@dataclass(slots=True)
class FittedOffsets:
    """kept: offsets that stay; dropped: of topics that are not in a tier, and begin anew; lowered:
    one row each."""

    kept: int = 0
    dropped: int = 0
    lowered: list[dict[str, object]] = field(default_factory=list)


def fit_offsets(
    data: bytes,
    ends: Mapping[QueueKey, int | None],
    stays_local: Callable[[str], bool],
    fitted: FittedOffsets,
) -> bytes:
    """Return a file of consumer offsets that fits the ends of the queues; a queue that is not
    among them is empty, None is an end that nobody knows. Adds to `fitted` what was done. Raises
    Corrupt."""
    try:
        file: dict[str, Any] = msgspec.json.decode(quote_integer_keys(data), type=dict[str, Any])
        table = msgspec.convert(file.get(_TABLE, {}), dict[str, _Queues])
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the backup has consumer offsets that cannot be read: {error}") from error
    new: dict[str, _Queues] = {}
    for key, queues in table.items():
        topic, _, group = key.partition("@")
        if stays_local(topic):
            fitted.dropped += len(queues)
            continue
        new[key] = dict(queues)
        for queue_id, offset in queues.items():
            end = ends.get(QueueKey(topic, int(queue_id)), 0)
            if end is None or offset <= end:
                fitted.kept += 1
                continue
            new[key][queue_id] = end
            fitted.lowered.append(
                {
                    "group": group,
                    "topic": topic,
                    "queue_id": int(queue_id),
                    "offset": offset,
                    "to_offset": end,
                }
            )
    fitted.dropped += len(file.pop(_LMQ_TABLE, None) or ())  # light queues are never uploaded
    return msgspec.json.format(msgspec.json.encode(file | {_TABLE: new}), indent=1)
