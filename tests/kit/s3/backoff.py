"""Fixture that removes the delay before retries, for tests with many failures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_backoff() -> Iterator[None]:
    """Make each retry immediate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tieredstore.providers.s3.lane.RETRY_PAUSE_MS", 0)
        yield
