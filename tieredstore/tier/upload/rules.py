"""What an upload is, in numbers: when a queue need not wait, and how much goes at once.

Pure, so that who plans ahead goes by the very rules of the dispatcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig

DEFERRED_BYTES: Final = 1 << 20
"""An upload of at most so much may wait, in memory, for a look that it shares with others."""


def goes_at_once(config: StoreConfig, waiting_messages: int) -> bool:
    """Tell whether so many messages are uploaded however young they are."""
    return not config.group_commit or waiting_messages > config.group_commit_count


def is_gathered(size_bytes: int, preferred_bytes: int) -> bool:
    """Tell whether batches of so many bytes are enough for a write."""
    return size_bytes >= preferred_bytes


def is_deferred(size_bytes: int, *, is_last: bool) -> bool:
    """Tell whether a write waits for a look at the writer epoch that it shares with others.
    is_last: whether the queue has no more."""
    return is_last and size_bytes <= DEFERRED_BYTES
