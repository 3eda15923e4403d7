"""The index of a fenced writer does no background work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.kit.tier.flat import T0, Tier, config
from tests.kit.tier.index import put_keys
from tieredstore.errors import Fenced
from tieredstore.service_thread import ServiceState
from tieredstore.tier.index import IndexStoreService


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
    put_keys(index, 0, "T", 0, ["a"], np.array([0]), sizes, np.array([T0]))
    assert index.seal_and_upload(force=True) == 1
    put_keys(index, 0, "T", 0, ["b"], np.array([100]), sizes, np.array([T0]))
    lost.append(True)
    before = tier.objects()
    with pytest.raises(Fenced):
        index.seal_and_upload(force=True)
    with pytest.raises(Fenced):
        index.expire(2**62)
    assert tier.objects() == before
    index.stop(force=False)


def test_the_loop_is_failed_as_long_as_the_right_to_write_is_lost(tmp_path: Path) -> None:
    def check_writer() -> None:
        raise Fenced("another writer is live")

    tier = Tier()
    index = IndexStoreService(
        config(),
        tier.provider,
        tier.metadata,
        tmp_path,
        tier.clock,
        check_writer=check_writer,
    )
    index.recover()
    with pytest.raises(Fenced):
        index.tick()
    index.tick()  # nothing is tried again
    index.start()
    try:
        [health] = index.health()
        assert health.state is ServiceState.FAILED
        assert "another writer is live" in str(health.error)
    finally:
        index.stop(force=False)
