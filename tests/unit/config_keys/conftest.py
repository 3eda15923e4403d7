"""Fixtures of the tests of the configuration keys."""

from __future__ import annotations

import pytest

from tests.unit.config_keys.broker import brokers


@pytest.fixture
def broker(tmp_path):
    """Makes stores from Java keys: `broker(tieredStoreGroupCommit=False)`."""
    with brokers(tmp_path) as make:
        yield make
