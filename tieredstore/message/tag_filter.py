"""Tag subscriptions on consume queues, by the hash of the tags."""

from __future__ import annotations

from collections.abc import Iterable

from tieredstore.message.hashes import java_string_hash
from tieredstore.message.record import StoredMessage

SUBSCRIBE_ALL = "*"


def parse_tags(expression: str | None) -> frozenset[str]:
    """Parse an expression such as `TagA || TagB` into its tags. Returns an empty set, meaning all
    messages, for `*`, an empty string and None."""
    tags = frozenset(tag.strip() for tag in (expression or "").split("||")) - {""}
    return frozenset() if SUBSCRIBE_ALL in tags else tags


class TagFilter:
    """Filter that accepts messages whose tags code is in `codes` (None: all messages). Two tags may
    share a hash, so a consumer compares the text itself, as Java's clients do. Only the low 32 bits
    of the 64-bit code are compared, because the others have other uses
    (`docs/formats/consume-queue.md`)."""

    __slots__ = ("codes",)

    def __init__(self, codes: Iterable[int] | None) -> None:
        self.codes = None if codes is None else frozenset(codes)

    @classmethod
    def parse(cls, expression: str | None) -> TagFilter:
        """Parse the filter of a subscription such as `TagA || TagB`. `*`, an empty string and None
        accept all messages."""
        tags = parse_tags(expression)
        return cls(java_string_hash(tag) for tag in tags) if tags else cls(None)

    def is_matched_by_consume_queue(self, tags_code: int | None) -> bool:
        """Return whether a unit with this tags code may match. True for an unknown code (None)."""
        if self.codes is None or tags_code is None:
            return True
        return ((tags_code + 0x8000_0000) & 0xFFFF_FFFF) - 0x8000_0000 in self.codes

    def is_matched_by_commit_log(self, message: StoredMessage) -> bool:  # noqa: ARG002
        """Return True, because the tags code in the unit has already been compared."""
        return True

    def __repr__(self) -> str:
        return "TagFilter(*)" if self.codes is None else f"TagFilter({sorted(self.codes)})"
