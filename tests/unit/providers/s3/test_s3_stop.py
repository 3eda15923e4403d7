"""A closed client or provider sends no more requests and cancels those in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.kit.certificates import self_signed
from tests.kit.s3.scripted_server import Reply, Request, ScriptedServer, s3_client, s3_settings
from tests.kit.waiting import LONGEST_S, wait_for
from tieredstore.contracts.segment import SegmentListing
from tieredstore.errors import Invalid, Unavailable
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.names import Generation
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.s3.client import S3Client
from tieredstore.providers.s3.provider import S3Provider
from tieredstore.testing.provider.samples import segment_id

AN_HOUR_MS = 3_600_000
SLOW = {"tieredStoreS3ReadTimeout": AN_HOUR_MS}
"""Configuration keys with a read time-out of an hour. The tests wait for a shorter time, so a
request that ends during a test was ended by the close."""

CALLS: dict[str, Callable[[S3Client], object]] = {
    "put": lambda client: client.put_if_absent("k", [b"data"], {}),
    "get": lambda client: client.get_range("k", 0, 4),
    "head": lambda client: client.head("k"),
    "list": lambda client: list(client.list("p/")),
    "delete": lambda client: client.delete(["k"]),
    "compose": lambda client: client.compose("k", [[b"data"]], {}),
    "abort": lambda client: client.abort_uploads("", 0),
}


@contextmanager
def hanging(server: ScriptedServer) -> Iterator[threading.Event]:
    """Withhold replies until the end of the `with` block. Yield an event that is set by the first
    request."""
    reached, go_on = threading.Event(), threading.Event()

    def answer(_: Request) -> Reply:
        reached.set()
        go_on.wait(LONGEST_S)
        return Reply(drop=True)

    server.otherwise = answer
    try:
        yield reached
    finally:
        go_on.set()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fast", [False, True])
def test_nothing_is_asked_for_after_close(server: ScriptedServer, call: str, *, fast: bool) -> None:
    with s3_client(server.url, tieredStoreS3FastReads=fast) as client:
        server.otherwise = lambda _: Reply(404)
        client.head("k")
        client.get_range("k", 0, 4)
        client.close()
        before = len(server.requests)
        with pytest.raises(Unavailable, match="closed"):
            CALLS[call](client)
        assert len(server.requests) == before
        assert (client._lane._client, client._bulk_lane._client) == (None, None)


@pytest.mark.parametrize("call", CALLS)
def test_close_ends_what_waits_for_an_answer(server: ScriptedServer, call: str) -> None:
    with ThreadPoolExecutor(1) as pool, s3_client(server.url, **SLOW) as client:
        with hanging(server) as reached:
            waiting = pool.submit(CALLS[call], client)
            assert reached.wait(LONGEST_S)
            client.close()
            with pytest.raises(Unavailable):
                waiting.result(LONGEST_S)
        assert len(server.requests) == 1  # no retry


def test_close_ends_what_waits_below_tls(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    with closing(ScriptedServer(certificate)) as server, ThreadPoolExecutor(1) as pool:
        settings = {"tieredStoreS3CaBundle": str(certificate[0]), **SLOW}
        with hanging(server) as reached, s3_client(server.url, **settings) as client:
            waiting = pool.submit(client.head, "k")
            assert reached.wait(LONGEST_S)
            client.close()
            with pytest.raises(Unavailable):
                waiting.result(LONGEST_S)


def test_close_ends_a_body_that_stands_still(server: ScriptedServer) -> None:
    headers = {"Content-Length": "4", "Content-Range": "bytes 0-3/4", "ETag": '"e"'}
    server.otherwise = lambda _: Reply(206, b"ab", headers)
    with ThreadPoolExecutor(1) as pool, s3_client(server.url, **SLOW) as client:
        waiting = pool.submit(client.get_range, "k", 0, 4)
        wait_for(lambda: bool(server.requests))
        client.close()
        with pytest.raises(Unavailable):
            waiting.result(LONGEST_S)


def test_close_ends_what_waits_for_its_turn(server: ScriptedServer) -> None:
    limits = {"tieredStoreS3MaxConnections": 1, **SLOW}
    with ThreadPoolExecutor(3) as pool, s3_client(server.url, **limits) as client:
        with hanging(server) as reached:
            calls: list[Future[object]] = [pool.submit(client.head, "k")]
            assert reached.wait(LONGEST_S)
            calls.append(pool.submit(client.head, "k"))
            calls.append(pool.submit(client.put_if_absent, "k", [b"x"], {}))
            client.close()
            for waiting in calls:
                with pytest.raises(Unavailable):
                    waiting.result(LONGEST_S)
        assert len(server.requests) == 1


def test_a_client_that_is_made_while_it_is_closed_sends_nothing(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that is created while the provider is being closed sends no requests."""
    with s3_client(server.url) as client:
        make = client._lane.make
        making, go_on = threading.Event(), threading.Event()

        def slowly() -> object:
            making.set()
            assert go_on.wait(LONGEST_S)
            return make()

        monkeypatch.setattr(client._lane, "make", slowly)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.head, "k")
            assert making.wait(LONGEST_S)
            client.close()
            go_on.set()
            with pytest.raises(Unavailable, match="closed"):
                waiting.result(LONGEST_S)
        assert server.requests == []


def make_provider(
    server: ScriptedServer, *, read_part_bytes: int = 8 << 20, **keys: object
) -> S3Provider:
    settings = s3_settings(server.url, **SLOW, **keys)
    chunk_settings = settings.chunk_settings(read_part_bytes=read_part_bytes, close_timeout_ms=200)
    return S3Provider(S3Client(settings), settings=chunk_settings)


def stuck_reader(provider: S3Provider) -> Callable[[], object]:
    manifest = SegmentManifest((Extent(0, 1 << 20, Generation(1, 1).name("s")),), sealed=True)
    segment = provider.open(segment_id(), SegmentListing(segment_id(), 1 << 20, False, manifest))
    return lambda: segment.read(0, 1 << 20)


def test_a_provider_closes_although_its_reads_hang(server: ScriptedServer) -> None:
    before = set(threading.enumerate())
    provider = make_provider(server, read_part_bytes=1 << 16)
    with ThreadPoolExecutor(1) as pool, hanging(server) as reached:
        waiting: Future[object] = pool.submit(stuck_reader(provider))
        assert reached.wait(LONGEST_S)
        closing_thread = threading.Thread(target=provider.close)
        closing_thread.start()
        closing_thread.join(LONGEST_S)
        assert not closing_thread.is_alive()
        with pytest.raises((Unavailable, Invalid)):
            waiting.result(LONGEST_S)

        def is_ours(thread: threading.Thread) -> bool:
            return thread not in before and thread.name.startswith("tiered-")

        wait_for(lambda: not any(map(is_ours, threading.enumerate())))
    # The server may see one of these only now. None is requested again.
    asked = [request.headers["range"] for request in list(server.requests)]
    assert len(set(asked)) == len(asked)


def test_a_stop_that_began_ends_what_is_under_way_before_close(server: ScriptedServer) -> None:
    """Requests in flight end when a stop begins, even before the provider is closed."""
    provider = make_provider(server, tieredStoreChunkFencing="none")
    # An epoch is taken: the listing is empty, then it is the new epoch's.
    folder = f"{provider._cluster_folder}/broker-a/.writer"
    keys: list[str] = []

    def answer(request: Request) -> Reply:
        if request.method == "PUT":
            keys.append(request.path.partition("/tier/")[2])
        contents = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-11-21T12:00:00.000Z</LastModified>"
            f"<Size>1</Size></Contents>"
            for key in keys
        )
        return Reply(
            body=f"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>{len(keys)}"
            f"</KeyCount>{contents}</ListBucketResult>".encode()
        )

    server.otherwise = answer
    epoch = provider.acquire_writer("broker-a")
    assert keys == [f"{folder}/{1:020d}"]
    with ThreadPoolExecutor(1) as pool, hanging(server) as reached:
        upload = pool.submit(provider.open(segment_id("broker-a/T/0")).write, 0, [b"x"])
        assert reached.wait(LONGEST_S)
        provider.begin_stop()
        with pytest.raises(Unavailable):
            upload.result(LONGEST_S)
        with pytest.raises(Unavailable):
            epoch.release()
        provider.close()
