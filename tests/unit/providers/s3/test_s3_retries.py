"""Tests of permanent failures. Only one layer retries, each operation has one retry budget, and
commits do not wait for reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import pytest

from tests.kit.s3.scripted_server import (
    Reply,
    Request,
    ScriptedServer,
    listing,
    ranged,
    refusal,
    s3_client,
    s3_settings,
)
from tests.kit.waiting import wait_for
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentListing, UnknownWrite
from tieredstore.errors import Unavailable
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.names import Generation, chunk_name
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.retries import carry_budget, limit_retries, take_retry
from tieredstore.providers.chunks.segment import ChunkFileSegment
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.s3.client import S3Client
from tieredstore.providers.s3.provider import S3Provider

LOG = SegmentId("broker-a/TopicA/0", FileSegmentType.COMMIT_LOG, 0)
FAILURES = [
    Reply(503),
    refusal(503, "SlowDown"),
    refusal(503, "ServiceUnavailable"),
    refusal(500, "InternalError"),
    refusal(429, "TooManyRequests"),
    Reply(drop=True),
]


@contextmanager
def provider(server: ScriptedServer, **properties: object) -> Iterator[S3Provider]:
    """A provider with the default number of attempts."""
    settings = s3_settings(
        server.url, **{"tieredStoreS3MaxAttempts": 4, "tieredStoreS3FastReads": True, **properties}
    )
    quick = ChunkSettings(maintenance_threads=0, fencing=False, pause_ms=0)
    with closing(S3Provider(S3Client(settings), settings=quick)) as made:
        yield made


LOOK = 1
"""Number of requests with which a first write without an epoch checks whether any epoch exists."""


def read(request: Request) -> Reply:
    """Reply to any request as if no object existed."""
    return listing([]) if request.method == "GET" else Reply(404)


def write(tier: S3Provider) -> object:
    return tier.open(LOG, SegmentListing(LOG, 0)).write(0, [b"data"])


def whole(tier: S3Provider, size: int) -> ChunkFileSegment:
    manifest = SegmentManifest((Extent(0, size, Generation(1, 1).name(chunk_name(0))),))
    return tier.open(LOG, SegmentListing(LOG, size, False, manifest, 1))


OPERATIONS: dict[str, tuple[Callable[[S3Provider], object], int]] = {
    "write": (write, 5),
    "read": (lambda tier: whole(tier, 100).read(0, 100), 6),
    "long read": (lambda tier: whole(tier, 2 << 20).read(0, 2 << 20), 6),
    "look": (lambda tier: tier.open(LOG).size(), 4),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_o01_a_steady_failure_costs_an_operation_few_requests(
    server: ScriptedServer, operation: str, failure: Reply
) -> None:
    """A permanent failure costs an operation only a few requests, because only one layer
    retries."""
    act, most = OPERATIONS[operation]
    server.otherwise = lambda _: failure
    with provider(server) as tier, suppress(Unavailable):
        assert isinstance(act(tier), UnknownWrite)
    assert 2 <= len(server.requests) <= most


@pytest.mark.parametrize("failure", FAILURES)
def test_o02_a_write_that_fails_beside_good_reads_costs_few_requests(
    server: ScriptedServer, failure: Reply
) -> None:
    server.otherwise = lambda request: failure if request.method == "PUT" else read(request)
    with provider(server) as tier, suppress(Unavailable):
        assert isinstance(write(tier), UnknownWrite)
    assert len(server.requests) <= LOOK + 5


def test_o02_a_conflict_is_tried_again_within_the_same_budget(server: ScriptedServer) -> None:
    conflict = refusal(409, "ConditionalRequestConflict")
    server.otherwise = lambda request: conflict if request.method == "PUT" else read(request)
    with provider(server) as tier, pytest.raises(Unavailable, match="not written"):
        write(tier)
    assert len(server.requests) == LOOK + 4


def test_o01_a_hedged_read_has_the_budget_of_one(server: ScriptedServer) -> None:
    server.otherwise = lambda _: Reply(503)
    settings = s3_settings(server.url, tieredStoreS3MaxAttempts=4)
    quick = ChunkSettings(maintenance_threads=0, fencing=False, pause_ms=0, hedge=True)
    with (
        closing(S3Provider(S3Client(settings), settings=quick)) as tier,
        pytest.raises(Unavailable),
    ):
        whole(tier, 100).read(0, 100)
    assert len(server.requests) == 4


def test_o01_a_part_of_an_object_has_the_budget_of_the_whole(server: ScriptedServer) -> None:
    upload = (
        b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
    )
    server.otherwise = lambda request: (
        Reply(body=upload) if request.operation == "POST ?uploads" else Reply(503)
    )
    with (
        s3_client(server.url, tieredStoreS3MaxAttempts=4) as client,
        limit_retries(2),
        pytest.raises(Unavailable),
    ):
        client.compose("k", [[b"data"]], {})
    assert [r.method for r in server.requests] == ["POST", "PUT", "PUT", "PUT", "DELETE"]


@pytest.mark.parametrize("failure", [refusal(400, "ExpiredToken"), Reply(503), Reply(drop=True)])
def test_a_body_from_a_file_is_sent_whole_each_time(server: ScriptedServer, failure: Reply) -> None:
    """Each attempt sends the whole body of a file. This endpoint cannot copy parts, so the body is
    sent as one object."""
    server.script = [failure]
    with s3_client(server.url, tieredStoreS3Dialect="google") as client:
        assert client.compose("k", [[b"data"]], {})
    assert [request.body for request in server.requests] == [b"data", b"data"]


def test_one_budget_counts_for_all_that_is_done_inside() -> None:
    assert take_retry()  # none
    with limit_retries(3), ThreadPoolExecutor(1) as pool:
        assert take_retry()
        with limit_retries(100):
            assert take_retry()
        assert pool.submit(take_retry).result()  # another operation
        assert pool.submit(carry_budget(take_retry)).result()
        assert not take_retry()
        assert not pool.submit(carry_budget(take_retry)).result()
    assert take_retry()


class Held:
    """Server that withholds replies to reads until the test releases them."""

    def __init__(self, server: ScriptedServer) -> None:
        self.go_on = threading.Event()
        self.count = 0
        self._lock = threading.Lock()
        server.otherwise = self.reply

    def reply(self, request: Request) -> Reply:
        if request.method == "GET" and "list-type" not in request.query:
            with self._lock:
                self.count += 1
            self.go_on.wait()
            return ranged(b"data", 0, 4)
        return listing([]) if request.method == "GET" else Reply()


@pytest.mark.parametrize("fast", [False, True])
def test_a_commit_does_not_wait_for_reads_that_hang(server: ScriptedServer, fast: bool) -> None:
    """A commit does not wait for hanging reads."""
    most = 4
    held = Held(server)
    with (
        s3_client(
            server.url,
            tieredStoreS3MaxConnections=most,
            tieredStoreS3FastReads=fast,
            tieredStoreS3ReadTimeout=60_000,
        ) as client,
        ThreadPoolExecutor(2 * most) as pool,
    ):
        reads = [pool.submit(client.get_range, "k", 0, 4) for _ in range(2 * most)]
        try:
            wait_for(lambda: held.count == most)
            assert client.put_if_absent("x", [b"a"], {})
            assert list(client.list("l/")) == []
            assert held.count == most
            assert not any(read.done() for read in reads)
        finally:
            held.go_on.set()
        assert [read.result() for read in reads] == [b"data"] * len(reads)


def test_o02_slow_down_reaches_the_fast_path(server: ScriptedServer) -> None:
    """The fast path also slows down after a SlowDown reply."""
    with s3_client(
        server.url,
        tieredStoreS3FastReads=True,
        tieredStoreS3MaxConnections=64,
        tieredStoreS3MaxAttempts=4,
    ) as client:
        gate = client._lane.find_gate(is_read=True)
        for answer, limit in (
            (refusal(503, "SlowDown"), 32),
            (Reply(503), 16),
            (refusal(400, "ThrottlingException"), 8),
        ):
            server.script = [answer]
            server.otherwise = lambda _: ranged(b"data", 0, 4)
            assert client.get_range("k", 0, 4) == b"data"
            assert gate.limit == limit
        assert client._lane.gate.limit == 64  # commits have their own
        usage = client.meter.usage()
        assert usage.rows[0].requests == 6
        assert usage.rows[0].failed == 3
        assert client._fast is not None
        assert client._fast.get_range("k", 0, 4) == b"data"  # it is not left out


def test_o02_the_fast_path_spends_the_budget_of_its_read(server: ScriptedServer) -> None:
    server.otherwise = lambda _: refusal(503, "SlowDown")
    with (
        s3_client(server.url, tieredStoreS3FastReads=True, tieredStoreS3MaxAttempts=4) as client,
        limit_retries(0),
        pytest.raises(Unavailable, match="fewer requests"),
    ):
        client.get_range("k", 0, 4)
    assert len(server.requests) == 1
