"""How long a backend takes, in the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

_GOLDEN: Final = 0.6180339887498949
_P99: Final = NormalDist().inv_cdf(0.99)


@dataclass(slots=True)
class Backend:
    """Times of a backend: of one request for little until its first byte, middle and 99th
    percentile, ms; bytes a second of all requests together; requests at once.

    Times in between are log-normal. They come in an order of their own that is the same each time.
    """

    p50_ms: float = 30.0
    p99_ms: float = 30.0
    bytes_per_s: float = 200e6
    concurrent: int = 16
    _drawn: int = field(default=0, repr=False)
    _free_ms: float = field(default=0.0, repr=False)

    def end_ms(self, sizes: list[int], begin_ms: float, *, is_answered: bool = False) -> float:
        """Compute when requests of these sizes end that are sent side by side at a time; at once
        without any. What others read meanwhile comes through the same line. is_answered: the first
        bytes are there at that time."""
        if not sizes:
            return begin_ms
        rounds = -(-len(sizes) // max(self.concurrent, 1))
        first_ms = sum(
            max(self.draw_ms() for _ in sizes[turn * self.concurrent :][: self.concurrent])
            for turn in range(is_answered, rounds)
        )
        self._free_ms = (
            max(begin_ms + first_ms, self._free_ms) + sum(sizes) * 1000 / self.bytes_per_s
        )
        return self._free_ms

    def begin(self) -> None:
        """Begin anew, with a line that is free."""
        self._free_ms = 0.0
        self._drawn = 0

    def draw_ms(self) -> float:
        """Return the time of the next request, ms."""
        if self.p99_ms <= self.p50_ms:
            return self.p50_ms
        self._drawn += 1
        share = min(max(self._drawn * _GOLDEN % 1.0, 1e-4), 1 - 1e-4)
        spread = math.log(self.p99_ms / self.p50_ms) / _P99
        return self.p50_ms * math.exp(spread * NormalDist().inv_cdf(share))
