"""The contract tests of providers, run on a tier in a SQLite file."""

from pathlib import Path

import pytest
from sqlite_provider import SqliteProvider

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.testing.provider.capabilities import RewritableProviderContract


class TestSqliteProvider(RewritableProviderContract):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> SegmentProvider:
        return SqliteProvider(str(tmp_path / "tier.sqlite"))

    def reopen(self, provider: SqliteProvider) -> SegmentProvider:
        return SqliteProvider(provider.file)
