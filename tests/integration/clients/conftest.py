"""Real clients, each in its own process, connect to our broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.clients.fixtures import (
    go_client,
    java_grpc,
    java_remoting,
    java_remoting4,
    node_client,
    python_client,
)
from tests.kit.clients.served import BROKERS, Served

__all__ = [
    "go_client",
    "java_grpc",
    "java_remoting",
    "java_remoting4",
    "node_client",
    "python_client",
]


@pytest.fixture(scope="module", params=["ours", pytest.param("java", marks=pytest.mark.slow)])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Our broker. Slow tests also use the Java broker for reference."""
    with BROKERS[request.param](tmp_path_factory.mktemp(request.param)) as broker:
        yield broker
