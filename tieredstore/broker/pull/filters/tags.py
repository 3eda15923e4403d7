"""ExactTagFilter: by the hash of the tags first, then by their text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tieredstore.message.hashes import java_string_hash
from tieredstore.message.tag_filter import TagFilter

if TYPE_CHECKING:
    from tieredstore.message.record import StoredMessage


class ExactTagFilter(TagFilter):
    """Accepts the messages that have one of `tags`. Two tags may share a hash: the text decides,
    so that clients that do not look at it themselves (gRPC) get what they asked for."""

    __slots__ = ("tags",)

    def __init__(self, tags: Iterable[str]) -> None:
        self.tags = frozenset(tags)
        super().__init__(java_string_hash(tag) for tag in self.tags)

    def is_matched_by_commit_log(self, message: StoredMessage) -> bool:
        """Tell whether the message has one of the tags."""
        return message.tags in self.tags
