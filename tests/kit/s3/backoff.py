"""A fixture for lanes whose servers fail often."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_backoff() -> Iterator[None]:
    """Retries follow at once: how long they wait is botocore's, how many there are is ours."""
    from botocore.retries.standard import ExponentialBackoff

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExponentialBackoff, "delay_amount", lambda _self, _context: 0.0)
        yield
