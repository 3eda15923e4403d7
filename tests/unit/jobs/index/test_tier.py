"""Which broker's index a job is about."""

from __future__ import annotations

import pytest

from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Invalid
from tieredstore.jobs.index.tier import _broker_of
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.scan.location import TierLocation


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
