"""The lane over real S3 servers; one that the machine lacks is skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.object_store.fixtures import credentials, new_bucket, servers
from tests.kit.object_store.servers import CREDENTIALS, NAMES, ObjectStore, Servers
from tieredstore.testing.fault_proxy.http import Credentials
from tieredstore.testing.fault_proxy.proxy import FaultProxy

__all__ = ["credentials", "servers"]


@pytest.fixture(scope="session", autouse=True)
def no_backoff() -> Iterator[None]:
    """Retries follow at once: how long they wait is botocore's, how many there are is ours."""
    from botocore.retries.standard import ExponentialBackoff

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExponentialBackoff, "delay_amount", lambda _self, _context: 0.0)
        yield


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
