"""Every provider passes the contract tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.kit.memory_chunks import chunk_provider
from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.testing.provider.capabilities import (
    ConditionalProviderContract,
    PairedProviderContract,
    RewritableProviderContract,
)
from tieredstore.tier.policy.limits import LimitedProvider


class TestPosixProvider(RewritableProviderContract):
    portable = False

    def open_tier(self, root: str | Path) -> PosixProvider:
        return PosixProvider(
            root,
            "DefaultCluster",
            fsync=False,
            max_open_files=8,
            calls=PosixCalls(portable=self.portable),
        )

    @pytest.fixture
    def provider(self, tmp_path: Path) -> Iterator[SegmentProvider]:
        with closing(self.open_tier(tmp_path)) as provider:
            yield provider

    def reopen(self, provider: SegmentProvider) -> SegmentProvider:
        return self.open_tier(provider.url.removeprefix("file://"))


class TestPosixProviderWithoutLinuxCalls(TestPosixProvider):
    portable = True


class TestMemoryProvider(RewritableProviderContract):
    @pytest.fixture
    def provider(self) -> Iterator[SegmentProvider]:
        with closing(MemoryProvider()) as provider:
            yield provider

    def reopen(self, provider: SegmentProvider) -> SegmentProvider:
        return provider


class TestChunkProvider(PairedProviderContract, ConditionalProviderContract):
    @pytest.fixture
    def provider(self) -> Iterator[SegmentProvider]:
        with closing(chunk_provider()) as provider:
            yield provider

    def reopen(self, provider: Any) -> SegmentProvider:
        return chunk_provider(provider.client)


class TestLimitedProvider(PairedProviderContract, ConditionalProviderContract):
    """A provider that limits requests and bytes. The contract tests do not reach the limits."""

    limits = StoreConfig(upload_bytes_per_s=1 << 30, download_bytes_per_s=1 << 30)

    @pytest.fixture
    def provider(self) -> Iterator[SegmentProvider]:
        with closing(LimitedProvider(chunk_provider(), self.limits)) as provider:
            yield provider

    def reopen(self, provider: Any) -> SegmentProvider:
        return LimitedProvider(chunk_provider(provider.wrapped.client), self.limits)
