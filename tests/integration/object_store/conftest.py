"""Fixtures for the tests on real S3 servers. If a server is missing on the machine, its tests are
skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.clients.fixtures import java_remoting
from tests.kit.fault_proxy.http import Credentials
from tests.kit.fault_proxy.proxy import FaultProxy
from tests.kit.object_store.fixtures import credentials, new_bucket, servers
from tests.kit.object_store.servers import CREDENTIALS, ObjectStore, Servers
from tests.kit.s3.backoff import no_backoff

__all__ = ["credentials", "java_remoting", "no_backoff", "servers"]


@pytest.fixture(
    params=["moto", "versitygw", pytest.param("localstack", marks=pytest.mark.slow)],
)
def object_store(request: pytest.FixtureRequest, servers: Servers) -> ObjectStore:
    """A new bucket, on each server in turn. Only slow tests use LocalStack, because versitygw makes
    the same checks and also checks signatures. A test that expects a different result from
    LocalStack names that server."""
    return new_bucket(servers, request.param)


@pytest.fixture
def versitygw(servers: Servers) -> ObjectStore:
    """A new bucket on the server that checks signatures and checksums."""
    return new_bucket(servers, "versitygw")


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[FaultProxy]:
    """A proxy in front of `object_store`. If a fault changes a request, the proxy can sign the
    request again."""
    with FaultProxy(object_store.endpoint, Credentials(*CREDENTIALS)) as proxy:
        yield proxy


@pytest.fixture
def strict_proxy(versitygw: ObjectStore) -> Iterator[FaultProxy]:
    """A proxy in front of `versitygw`."""
    with FaultProxy(versitygw.endpoint, Credentials(*CREDENTIALS)) as proxy:
        yield proxy


@pytest.fixture
def proxied(object_store: ObjectStore, proxy: FaultProxy) -> ObjectStore:
    return object_store.through(proxy.endpoint)
