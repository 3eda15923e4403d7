"""Rest: not trying again at once what has just failed."""

from __future__ import annotations

from typing import Final

from tieredstore.clock import Clock

_FIRST_REST_MS: Final = 20_000
_LONGEST_REST_MS: Final = 600_000
_MOST_DOUBLINGS: Final = 16


class Rest:
    """How long something that failed is not tried again: ever longer, up to ten minutes."""

    __slots__ = ("_clock", "_failures", "_until_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = 0
        self._until_ms = 0

    @property
    def is_over(self) -> bool:
        return not self._failures or self._clock.monotonic_ms() >= self._until_ms

    def begin(self) -> None:
        """Note that it failed."""
        rest_ms = min(_FIRST_REST_MS << min(self._failures, _MOST_DOUBLINGS), _LONGEST_REST_MS)
        self._failures += 1
        self._until_ms = self._clock.monotonic_ms() + rest_ms

    def end(self) -> None:
        """Note that it went well."""
        self._failures = 0
