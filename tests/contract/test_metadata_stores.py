"""Every metadata store passes the contract tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tieredstore.clock import ManualClock
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.metadata.json_format import Limits
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.testing.metadata_contract import MetadataStoreContract


class TestJsonMetadataStore(MetadataStoreContract):
    limits = Limits()

    def open_store(self, path: Path) -> DefaultMetadataStore:
        store = DefaultMetadataStore(path, "broker-a", ManualClock(), limits=self.limits)
        store.load()
        return store

    @pytest.fixture
    def store(self, tmp_path: Path) -> MetadataStore:
        return self.open_store(tmp_path / "config" / "tieredStoreMetadata.json")

    def reopen(self, store: Any) -> MetadataStore:
        return self.open_store(store.path)


class TestJsonMetadataStoreThatCompactsAllTheTime(TestJsonMetadataStore):
    limits = Limits(max_journal_bytes=300)
