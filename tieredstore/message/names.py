"""RocketMQ's own topics and prefixes, and logical paths in a tier.

Paths: `docs/formats/tier-layout.md`; file names are the providers'.
"""

from __future__ import annotations

import re
from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Delayed messages, a queue for each level; their units hold a time in place of a tags code."""
SYSTEM_TOPICS: Final = frozenset(
    {
        "TBW102",
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
"""Topics of the broker itself, beside those that begin with SYSTEM_PREFIX."""

SYSTEM_PREFIX: Final = "rmq_sys_"
TIMER_TOPIC: Final = SYSTEM_PREFIX + "wheel_timer"
"""Messages that are delivered at a time of their own, in queue 0."""
RETRY_PREFIX: Final = "%RETRY%"
"""In front of a consumer group: messages to deliver to it once more."""
DLQ_PREFIX: Final = "%DLQ%"
"""In front of a consumer group: messages that it failed to consume too often."""
LMQ_PREFIX: Final = "%LMQ%"
"""Light message queues: consume queues over messages of other topics."""

INDEX_TOPIC: Final = SYSTEM_PREFIX + "INDEX"
"""The topic under which the index segments of a broker are, in queue 0."""

DELETION_TOPIC: Final = SYSTEM_PREFIX + "DELETED_TOPICS"
"""The topic, in queue 0, whose messages say that a topic of a local store was deleted
(`docs/formats/topic-deletion.md`)."""


MAX_NAME_BYTES: Final = 255
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f/\\]")


def find_name_fault(name: str) -> str | None:
    """Tell why a name cannot be one component of a path, in a local store or in a tier; None when
    it can. The answer goes on after the name: "is empty", "starts with a dot", …"""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode text"
    if not name:
        return "is empty"
    if size > MAX_NAME_BYTES:
        return f"has {size} bytes, at most {MAX_NAME_BYTES} are possible"
    found = _UNSAFE.search(name)
    if found is not None:
        return f"contains {found[0]!r}"
    if name.startswith("."):
        # "." and ".." leave the folder; other dot names are this project's own files
        return "starts with a dot"
    return None


def is_system_topic(topic: str) -> bool:
    """Tell whether a topic is one of the broker's own."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def queue_path(broker_name: str, topic: str, queue_id: int) -> str:
    """Join `broker/topic/queue`: the path of a queue's segments."""
    return f"{broker_name}/{topic}/{queue_id}"


def index_path(broker_name: str) -> str:
    """Join the path of a broker's index segments."""
    return queue_path(broker_name, INDEX_TOPIC, 0)
