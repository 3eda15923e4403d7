"""The provider contract runs on servers that check requests. `tests/unit/providers/s3` runs it on
Moto."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.kit.object_store.fixtures import new_bucket
from tests.kit.object_store.servers import ObjectStore, Servers
from tests.kit.object_store.tiers import open_tier
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.testing.provider.capabilities import (
    ConditionalProviderContract,
    PairedProviderContract,
)


class _OnServer(PairedProviderContract, ConditionalProviderContract):
    server: str
    listing_count = 120  # 1,001 keys and more are in the tests of listings
    state_machine_examples = 3

    @pytest.fixture
    def provider(self, servers: Servers) -> Iterator[SegmentProvider]:
        self.store: ObjectStore = new_bucket(servers, self.server)
        self.opened: list[SegmentProvider] = []
        with closing(open_tier(self.store)) as provider:
            yield provider
            for other in self.opened:
                other.close()

    def reopen(self, provider: SegmentProvider) -> SegmentProvider:
        self.opened.append(open_tier(self.store))
        return self.opened[-1]


@pytest.mark.slow  # versitygw checks more
class TestLocalStack(_OnServer):
    server = "localstack"


class TestVersitygw(_OnServer):
    server = "versitygw"
