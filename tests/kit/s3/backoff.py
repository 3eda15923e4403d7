"""Fixture that removes the pauses before retries, for tests whose servers often fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_backoff() -> Iterator[None]:
    """Make each retry immediate, without a delay after the failure."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tieredstore.providers.s3.lane.RETRY_PAUSE_MS", 0)
        yield
