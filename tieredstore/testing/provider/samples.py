"""Sample names, contents and helpers for the provider contract."""

from __future__ import annotations

from collections.abc import Sequence

from tieredstore.contracts.segment import FileSegment, FileSegmentType, SegmentId, Written
from tieredstore.contracts.tier_identity import WriterMark
from tieredstore.message.names import DLQ_PREFIX, INDEX_TOPIC, LMQ_PREFIX, RETRY_PREFIX

COMMIT_LOG = FileSegmentType.COMMIT_LOG
CONSUME_QUEUE = FileSegmentType.CONSUME_QUEUE
INDEX = FileSegmentType.INDEX

USABLE_TOPICS = (
    "TopicTest",
    RETRY_PREFIX + "group-a",
    DLQ_PREFIX + "group_b",
    LMQ_PREFIX + "device|1",
    INDEX_TOPIC,
    "a b",
    "a%2Fb",
    "Тема",
    "ТopicTest",  # The first letter is Cyrillic.
    "x" * 255,
)
UNUSABLE_TOPICS = (
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/a",
    "a/",
    "a\x00b",
    "a\nb",
    "a\\b",
    ".writer",
    "x" * 256,
    "ж" * 128,
    "\ud800",
)
UNUSABLE_PATHS = ("", "b", "b/t", "b/t/0/0", "b/t/x", "b/t/-1", "b/t/01", "b/t/²", "../t/0", "b//0")


class MemoryRecord:
    """In-memory EpochRecord that behaves like the record of a locked state directory."""

    def __init__(self, mark: WriterMark | None = None) -> None:
        self._claims: list[str] = []
        self.mark = mark

    def load(self) -> Sequence[str]:
        """Return the claims."""
        return list(self._claims)

    def save(self, claims: Sequence[str]) -> None:
        """Replace the claims."""
        self._claims = list(claims)


def segment_id(
    path: str = "broker-a/TopicTest/0", type: FileSegmentType = COMMIT_LOG, base_offset: int = 0
) -> SegmentId:
    return SegmentId(path, type, base_offset)


def content(length: int, seed: int = 0) -> bytes:
    """Return bytes that are never zero and differ at each position."""
    cycle = bytes((position * 7 + seed) % 255 + 1 for position in range(255))
    return (cycle * (length // 255 + 1))[:length]


def write_whole(segment: FileSegment, data: bytes, position: int = 0) -> FileSegment:
    assert segment.write(position, [data]) == Written(position + len(data))
    return segment
