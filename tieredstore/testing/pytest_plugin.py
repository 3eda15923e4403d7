"""Pytest fixture `rocketmq_broker`, a new broker for each test (`tieredstore.testing.broker`).

pytest_plugins = ["tieredstore.testing.pytest_plugin"]
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tieredstore.testing.broker import Broker


@pytest.fixture
def rocketmq_broker() -> Iterator[Broker]:
    """Run a broker in this process, on free ports, for one test."""
    with Broker() as broker:
        yield broker
