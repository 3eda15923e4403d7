"""When the index's loop works."""

from __future__ import annotations

import threading

from tieredstore.clock import ManualClock
from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.tier.index.loop import IndexLoop


class _Clock(ManualClock):
    """Goes back by a year in the first wait, then ends the loop after some rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0
        self.loop: IndexLoop | None = None

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        self.rounds += 1
        self.advance(-365 * 86_400_000 if self.rounds == 1 else timeout_ms)
        if self.rounds == 5:
            assert self.loop is not None
            self.loop.stop()
        return event.is_set()


def test_a_clock_set_back_after_a_failure_does_not_stop_the_work() -> None:
    clock = _Clock()
    works: list[int] = []
    duties: list[int] = []

    def work() -> None:
        works.append(clock.rounds)
        if len(works) == 1:
            raise Unavailable("the backend is away")

    def report(where: str, error: TieredStoreError) -> None:
        assert isinstance(error, Unavailable), where

    clock.loop = IndexLoop(clock, work, lambda: duties.append(clock.rounds), report)
    clock.loop.run()
    assert works == [0, 1, 2, 3, 4]
    assert duties == []
