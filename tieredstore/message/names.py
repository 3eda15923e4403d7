"""RocketMQ's own topics and prefixes, and logical paths in a tier (`docs/formats/tier-layout.md`).
The providers define the file names."""

from __future__ import annotations

import re
from typing import Final

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Topic of delayed messages, with one queue for each level. Its units hold a time instead of a tags
code."""
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
"""Topics of the broker itself, besides the topics that begin with SYSTEM_PREFIX."""

SYSTEM_PREFIX: Final = "rmq_sys_"
TIMER_TOPIC: Final = SYSTEM_PREFIX + "wheel_timer"
"""Topic of messages with an individual delivery time, in queue 0."""
RETRY_PREFIX: Final = "%RETRY%"
"""Prefix of the topic in which a consumer group's messages wait for their redelivery."""
DLQ_PREFIX: Final = "%DLQ%"
"""Prefix of the topic of messages that a consumer group failed to consume too often."""
LMQ_PREFIX: Final = "%LMQ%"
"""Prefix of the names of light queues. A light queue is a consume queue whose messages are stored
in other topics."""

INDEX_TOPIC: Final = SYSTEM_PREFIX + "INDEX"
"""Topic of the index segments of a broker, in queue 0."""

DELETION_TOPIC: Final = SYSTEM_PREFIX + "DELETED_TOPICS"
"""Topic whose messages, in queue 0, record deletions of topics in a local store
(`docs/formats/topic-deletion.md`)."""


TRACE_PREFIX: Final = SYSTEM_PREFIX + "TRACE_DATA_"
"""Prefix of the name of a region's trace topic. Clients use such a topic with the access channel
CLOUD."""
REVIVE_PREFIX: Final = SYSTEM_PREFIX + "REVIVE_LOG_"
"""Prefix of a cluster's topic in which a Java broker keeps popped messages. It is the only system
topic whose messages may have a delivery time."""
_OPEN_SYSTEM_TOPICS: Final = frozenset({"BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"})

MAX_NAME_BYTES: Final = 255
_UNSAFE: Final = re.compile(r"[\x00-\x1f\x7f/\\]")


def find_name_fault(name: str) -> str | None:
    """Return why a name cannot be part of a path, in a local store or in a tier, or None. The text
    continues a sentence that begins with the name: "is empty", "starts with a dot", …"""
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
        # "." and ".." leave the folder. Other names with a dot are this project's own files.
        return "starts with a dot"
    return None


def is_system_topic(topic: str) -> bool:
    """Return whether a topic is a system topic."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_closed_topic(topic: str) -> bool:
    """Return whether only the broker itself may put messages in a topic. True for system topics
    except the trace topics and the benchmark topic."""
    return (
        is_system_topic(topic)
        and topic not in _OPEN_SYSTEM_TOPICS
        and not topic.startswith(TRACE_PREFIX)
    )


def queue_path(broker_name: str, topic: str, queue_id: int) -> str:
    """Return `broker/topic/queue`: the path of a queue's segments."""
    return f"{broker_name}/{topic}/{queue_id}"


def index_path(broker_name: str) -> str:
    """Return the path of a broker's index segments."""
    return queue_path(broker_name, INDEX_TOPIC, 0)


MAX_TOPIC_BYTES: Final = 127
MAX_RETRY_TOPIC_BYTES: Final = 255
MAX_QUEUE_ID: Final = 65_535


def illegal_topic(topic: str, queue_id: int) -> str | None:
    """Return why no message may be put in this queue, or None. The length limits are RocketMQ's. A
    topic is a folder name, in the store and in a tier."""
    try:
        length = len(topic.encode())
    except UnicodeEncodeError:
        return f"topic {topic!r}: expected text"
    limit = MAX_RETRY_TOPIC_BYTES if topic.startswith(RETRY_PREFIX) else MAX_TOPIC_BYTES
    if not 0 < length <= limit:
        return f"topic: expected 1 to {limit} bytes, found {length}"
    fault = find_name_fault(topic)
    if fault is not None:
        return f"topic {topic!r}: expected a name that can be a folder's: it {fault}"
    if not 0 <= queue_id <= MAX_QUEUE_ID:
        return f"queue id: expected 0 to {MAX_QUEUE_ID}, found {queue_id}"
    return None
