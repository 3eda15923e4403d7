"""Warnings about misbehaving peers, combined to keep the log short."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

PERIOD_S: Final = 60.0
_MOST_CHARACTERS: Final = 300
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Period:
    """Warnings not logged yet. `counts`: number of warnings by kind. `last`: text of the last
    warning by kind."""

    counts: Counter[str] = field(default_factory=Counter)
    last: dict[str, str] = field(default_factory=dict)


class PeerWarnings:
    """Logs the first warning immediately, and later ones in one line per minute and event loop."""

    def __init__(self) -> None:
        self._periods: WeakKeyDictionary[asyncio.AbstractEventLoop, _Period] = WeakKeyDictionary()

    def note(self, kind: str, text: str, error: BaseException | None = None) -> None:
        """Warn about a peer. `kind`: one of a few kinds of warnings, such as "connections closed".
        `text`: the peer and its fault. `error`: error whose traceback is logged if the warning is
        logged immediately."""
        text = text[:_MOST_CHARACTERS]
        loop = asyncio.get_running_loop()
        period = self._periods.get(loop)
        if period is None:
            self._periods[loop] = _Period()
            loop.call_later(PERIOD_S, self._sum_up, loop)
            _log.warning("%s", text, exc_info=error)
            return
        period.counts[kind] += 1
        period.last[kind] = text

    def _sum_up(self, loop: asyncio.AbstractEventLoop) -> None:
        period = self._periods.pop(loop, None)
        if period is None or not period.counts:
            return
        self._periods[loop] = _Period()
        loop.call_later(PERIOD_S, self._sum_up, loop)
        parts = (
            f"{count} {kind} (the last: {period.last[kind]})"
            for kind, count in period.counts.most_common()
        )
        _log.warning("peers in the last %d s: %s", PERIOD_S, "; ".join(parts))


PEERS: Final = PeerWarnings()
