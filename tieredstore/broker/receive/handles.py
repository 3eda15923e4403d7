"""Receipt handles: which delivery of which message a consumer speaks of."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_FORMAT: Final = re.compile(r"1:([0-9]{1,9}):([0-9]{1,18}):([0-9a-f]{1,16})")


class Receipt(NamedTuple):
    """queue_id and offset: the message; generation: which delivery of it, never used twice."""

    queue_id: int
    offset: int
    generation: int


def encode_handle(receipt: Receipt) -> str:
    """Make the text that clients give back: `1:<queue>:<offset>:<generation>`. The first number is
    the version of the format. Clients take it as it is."""
    return f"1:{receipt.queue_id}:{receipt.offset}:{receipt.generation:x}"


def decode_handle(text: str) -> Receipt | None:
    """Return what a handle says; None when it is none of ours."""
    found = _FORMAT.fullmatch(text)
    if found is None:
        return None
    queue_id, offset, generation = found.groups()
    return Receipt(int(queue_id), int(offset), int(generation, 16))
