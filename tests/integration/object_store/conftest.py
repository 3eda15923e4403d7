"""The lane over real S3 servers; one that the machine lacks is skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.clients.fixtures import java_remoting
from tests.kit.object_store.fixtures import credentials, new_bucket, servers
from tests.kit.object_store.servers import CREDENTIALS, NAMES, ObjectStore, Servers
from tests.kit.s3.backoff import no_backoff
from tieredstore.testing.fault_proxy.http import Credentials
from tieredstore.testing.fault_proxy.proxy import FaultProxy

__all__ = ["credentials", "java_remoting", "no_backoff", "servers"]


@pytest.fixture(params=NAMES)
def object_store(request: pytest.FixtureRequest, servers: Servers) -> ObjectStore:
    """A fresh bucket on each server."""
    return new_bucket(servers, request.param)


@pytest.fixture
def versitygw(servers: Servers) -> ObjectStore:
    """A fresh bucket on the server that checks signatures and checksums."""
    return new_bucket(servers, "versitygw")


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[FaultProxy]:
    """In front of `object_store`; it may sign again what a fault changed."""
    with FaultProxy(object_store.endpoint, Credentials(*CREDENTIALS)) as proxy:
        yield proxy


@pytest.fixture
def strict_proxy(versitygw: ObjectStore) -> Iterator[FaultProxy]:
    """In front of `versitygw`."""
    with FaultProxy(versitygw.endpoint, Credentials(*CREDENTIALS)) as proxy:
        yield proxy


@pytest.fixture
def proxied(object_store: ObjectStore, proxy: FaultProxy) -> ObjectStore:
    return object_store.through(proxy.endpoint)
