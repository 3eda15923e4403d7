"""Before its first write, a writer checks that the object store refuses to create an object
twice."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.kit.object_faults import FaultyObjectClient, ObjectFault
from tieredstore.clock import ManualClock
from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.providers.chunks.epochs.fencing import ABANDONED_MS, check_fencing


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
    assert operations(client) == ["LIST", "PUT", *["DELETE"] * 4]


@pytest.mark.parametrize("fault", [ObjectFault.FAIL, ObjectFault.LOSE_REPLY, ObjectFault.SHORT])
@pytest.mark.parametrize("number", range(1, 6))
def test_nothing_is_left_whichever_request_fails(number: int, fault: ObjectFault) -> None:
    client = FaultyObjectClient({number: fault})
    with suppress(TieredStoreError):
        check_fencing(client, "folder")
    assert list(client.list("")) == []


def test_what_one_probe_could_not_delete_the_next_one_does() -> None:
    clock = ManualClock()
    client = failing("DELETE")
    client = FaultyObjectClient(now_ms=clock.now_ms, fault_of=client.fault_of)
    client.put_if_absent("folder/00000000000000000001", [b"epoch"], {})
    with pytest.raises(Unavailable, match="DELETE"):
        check_fencing(client, "folder")
    client.fault_of = None
    clock.advance(ABANDONED_MS)
    check_fencing(client, "folder")  # may be an upload in flight
    assert len(list(client.list(""))) == 2
    clock.advance(1)
    check_fencing(client, "folder")
    assert [info.key for info in client.list("")] == ["folder/00000000000000000001"]
