"""Names in a tier: the path of a queue and of its segments (`docs/formats/tier-layout.md`)."""

from __future__ import annotations

import functools
import hashlib
from typing import Final

from tieredstore.errors import Invalid

INDEX_TOPIC: Final = "rmq_sys_INDEX"
"""The topic under which the index segments of a broker are, in queue 0."""

_DIGITS: Final = 20
_HASH_DIGITS: Final = 8


def name_hash(text: str) -> str:
    """First 8 hex digits (lower case) of the MD5 of the UTF-8 bytes."""
    digest = hashlib.md5(text.encode("utf-8", "replace"), usedforsecurity=False)
    return digest.hexdigest()[:_HASH_DIGITS]


@functools.lru_cache(maxsize=256)
def cluster_directory(cluster: str) -> str:
    """`<hash>_<cluster>`: the first path component of a tier."""
    return f"{name_hash(cluster)}_{cluster}"


def queue_path(broker_name: str, topic: str, queue_id: int) -> str:
    """`broker/topic/queue`: the logical path of a queue's segments."""
    return f"{broker_name}/{topic}/{queue_id}"


def index_path(broker_name: str) -> str:
    """The logical path of a broker's index segments."""
    return queue_path(broker_name, INDEX_TOPIC, 0)


def segment_name(base_offset: int) -> str:
    """`<hash of the decimal><20 digits>`. Raises Invalid for a negative offset."""
    if base_offset < 0:
        raise Invalid(f"segment base offset: expected 0 or more, found {base_offset}")
    return f"{name_hash(str(base_offset))}{base_offset:0{_DIGITS}d}"


def parse_segment_name(name: str) -> int:
    """The base offset in a segment's name. Raises Invalid when the name is not the one that
    `segment_name` gives."""
    digits = name[_HASH_DIGITS:]
    if len(digits) == _DIGITS and digits.isascii() and digits.isdigit():
        base_offset = int(digits)
        if segment_name(base_offset) == name:
            return base_offset
    raise Invalid(f"segment name: expected 8 hex digits and 20 decimal ones, found {name!r}")
