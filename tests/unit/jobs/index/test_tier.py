"""Which broker's index a job is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.tier_builder import small_tier
from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Invalid
from tieredstore.jobs.index.tier import _broker_of, open_index_tier
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.scan.location import TierLocation, locate


def test_the_only_broker_of_a_tier_is_meant_and_of_several_one_must_be_named() -> None:
    provider = MemoryProvider()
    unnamed = TierLocation("memory://", StoreConfig())
    with pytest.raises(Invalid, match="brokers in the tier: none; choose one with --broker"):
        _broker_of(unnamed, provider)
    for broker in ("b", "a"):
        segment = SegmentId(f"{broker}/T/0", FileSegmentType.COMMIT_LOG, 0)
        provider.open(segment).write(0, [b"x"])
        if broker == "b":
            assert _broker_of(unnamed, provider) == "b"
    with pytest.raises(Invalid, match="brokers in the tier: a, b; choose one with --broker"):
        _broker_of(unnamed, provider)
    assert _broker_of(TierLocation("memory://", StoreConfig(), "a"), provider) == "a"


def test_a_broker_of_which_the_tier_has_no_queue_is_refused(tmp_path: Path) -> None:
    url = small_tier(tmp_path).url
    with (
        pytest.raises(Invalid, match=r"has no queue of broker 'broker-z' in .*`rebuild metadata`"),
        open_index_tier(locate(url, broker="broker-z")),
    ):
        pass
    with open_index_tier(locate(url, broker="broker-a")) as tier:
        assert [queue.path for queue in tier.queues()]
