"""Logical paths in a tier (`docs/formats/tier-layout.md`); file names are the providers'."""

from __future__ import annotations

from typing import Final

INDEX_TOPIC: Final = "rmq_sys_INDEX"
"""The topic under which the index segments of a broker are, in queue 0."""


def queue_path(broker_name: str, topic: str, queue_id: int) -> str:
    """`broker/topic/queue`: the path of a queue's segments."""
    return f"{broker_name}/{topic}/{queue_id}"


def index_path(broker_name: str) -> str:
    """The path of a broker's index segments."""
    return queue_path(broker_name, INDEX_TOPIC, 0)
