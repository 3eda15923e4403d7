"""Warning about messages that expired before they were read."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


def warn_of_loss(queue: str, first: int, least: int) -> None:
    """Warn if a queue starts at offset `least`, after the offset `first` at which reading should
    continue."""
    if first < least:
        _log.warning(
            "%s: %d messages expired before they were read, %d to %d",
            queue, least - first, first, least - 1,
        )  # fmt: skip
