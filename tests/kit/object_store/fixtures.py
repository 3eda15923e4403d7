"""Fixtures for all tests that use S3 servers. If a server is missing on the machine, its tests are
skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.object_store.servers import ENVIRONMENT, NotHere, ObjectStore, Servers


@pytest.fixture(scope="session", autouse=True)
def credentials() -> Iterator[None]:
    """Let boto3's default credential chain find only the test credentials."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_REGION"):
            patch.delenv(name, raising=False)
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    started = Servers(tmp_path_factory.mktemp("servers"))
    yield started
    started.stop()


def new_bucket(servers: Servers, name: str) -> ObjectStore:
    try:
        return servers.bucket(name)
    except NotHere as reason:
        pytest.skip(str(reason))
