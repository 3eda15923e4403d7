"""The probe that a writer makes before its first write."""

from __future__ import annotations

import pytest

from tieredstore.errors import Unavailable
from tieredstore.providers.chunks.fencing import check_fencing
from tieredstore.testing.object_faults import FaultyObjectClient, ObjectFault


def failing(*operations: str) -> FaultyObjectClient:
    return FaultyObjectClient(
        fault_of=lambda operation, _: ObjectFault.FAIL if operation in operations else None
    )


def operations(client: FaultyObjectClient) -> list[str]:
    return [request.split(" ")[0] for request in client.requests]


def test_nothing_is_left_of_it() -> None:
    client = FaultyObjectClient()
    check_fencing(client, "folder")
    assert list(client.list("")) == []


def test_an_endpoint_that_does_not_answer_is_asked_for_a_listing_alone() -> None:
    client = failing("LIST", "PUT", "DELETE")
    with pytest.raises(Unavailable):
        check_fencing(client, "folder")
    assert operations(client) == ["LIST"]


def test_a_write_that_fails_is_told_even_when_its_object_cannot_be_deleted_either() -> None:
    client = failing("PUT", "DELETE")
    with pytest.raises(Unavailable, match="PUT"):
        check_fencing(client, "folder")
    assert operations(client) == ["LIST", "PUT", "DELETE"]
