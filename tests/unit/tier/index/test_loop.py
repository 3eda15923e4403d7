"""When the index works in the background, and when it must not."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from tests.kit.tier.flat import T0, Tier, config
from tieredstore.clock import ManualClock
from tieredstore.errors import Fenced, TieredStoreError, Unavailable
from tieredstore.tier.index import IndexStoreService
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


def test_nothing_is_uploaded_or_expired_once_the_right_to_write_is_lost(tmp_path: Path) -> None:
    lost: list[bool] = []

    def check_writer() -> None:
        if lost:
            raise Fenced("another writer is live")

    tier = Tier(settings={"index_file_max_hash_slot_num": 8, "index_file_max_index_num": 20})
    index = IndexStoreService(
        config(**tier.settings),
        tier.provider,
        tier.metadata,
        tmp_path,
        tier.clock,
        check_writer=check_writer,
    )
    index.recover()
    sizes = np.array([100], dtype=np.int32)
    index.put_keys(0, "T", 0, ["a"], np.array([0]), sizes, np.array([T0]))
    assert index.seal_and_upload(force=True) == 1
    index.put_keys(0, "T", 0, ["b"], np.array([100]), sizes, np.array([T0]))
    lost.append(True)
    before = tier.objects()
    with pytest.raises(Fenced):
        index.seal_and_upload(force=True)
    with pytest.raises(Fenced):
        index.expire(2**62)
    assert tier.objects() == before
    index.stop(force=False)
