"""Fixtures for tests that use S3 servers. A test is skipped if its server is missing on the
machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.object_store.servers import ENVIRONMENT, NotHere, ObjectStore, Servers


@pytest.fixture(scope="session", autouse=True)
def credentials() -> Iterator[None]:
    """Restrict boto3's credential chain to the test credentials."""
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
