"""Tests of the fault proxy in front of a small server, whose replies describe the requests it
received."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from tests.kit.fault_proxy.faults import (
    answer,
    answer_after,
    answer_other_range,
    answer_whole_object,
    change_list,
    corrupt_body,
    corrupt_upload,
    cut_body,
    drop_from_list,
    duplicate_in_list,
    end_list_early,
    hold,
    ignore_conditions,
    lose_reply,
    lose_request,
    reorder_list,
    shorten_body,
    slow_down,
)
from tests.kit.fault_proxy.http import Forward, Reply, Request
from tests.kit.fault_proxy.proxy import FaultProxy

OBJECT = bytes(range(100))
LISTING = (
    b"<ListBucketResult><IsTruncated>true</IsTruncated><KeyCount>3</KeyCount>"
    b"<NextContinuationToken>t</NextContinuationToken>"
    b"<Contents><Key>a</Key></Contents><Contents><Key>b</Key></Contents>"
    b"<Contents><Key>c</Key></Contents><Name>bucket</Name></ListBucketResult>"
)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []


class Handler(BaseHTTPRequestHandler):
    """Server that records PUT requests, serves ranges of /bucket/object, and returns a listing for
    /bucket?list-type=2."""

    protocol_version = "HTTP/1.1"
    server: Server

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append((self.command, self.path, dict(self.headers), body))
        status, sent, extra = 200, OBJECT, {}
        if "list-type" in self.path:
            sent = LISTING
        elif self.command != "GET":
            sent = b""
        elif asked := self.headers.get("Range"):
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            status, sent = 206, OBJECT[first : last + 1]
            extra = {"Content-Range": f"bytes {first}-{last}/100"}
        self.send_response(status)
        for name, value in {**extra, "Content-Length": str(len(sent))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(f"http://127.0.0.1:{server.server_address[1]}") as proxy:
        yield proxy


def ask(
    proxy: FaultProxy,
    method: str = "GET",
    target: str = "/bucket/object",
    body: bytes | None = None,
    **headers: str,
) -> tuple[int, bytes, dict[str, str]]:
    """Send one request on a new connection."""
    parts = urlsplit(proxy.endpoint)
    assert parts.hostname
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, target, body, named)
        with connection.getresponse() as reply:
            return reply.status, reply.read(), dict(reply.getheaders())


def test_a_request_and_its_reply_pass_as_they_are(server: Server, proxy: FaultProxy) -> None:
    status, body, _ = ask(
        proxy, "PUT", "/bucket/a%2Bb%20c?x=1&y", b"body", Host="signed.example:1", X_Amz_Meta_W="7"
    )
    assert (status, body) == (200, b"")
    method, path, headers, sent = server.requests[0]
    assert (method, path, sent) == ("PUT", "/bucket/a%2Bb%20c?x=1&y", b"body")
    assert headers["Host"] == "signed.example:1"
    assert headers["X-Amz-Meta-W"] == "7"
    exchange = proxy.seen[0]
    assert (exchange.operation, exchange.key) == ("PutObject", "a+b c")
    assert (exchange.applied, exchange.answered, exchange.sent_bytes) == (200, 200, 4)


def test_one_connection_carries_many_requests(server: Server, proxy: FaultProxy) -> None:
    parts = urlsplit(proxy.endpoint)
    assert parts.hostname
    with closing(http.client.HTTPConnection(parts.hostname, parts.port)) as connection:
        for number in range(20):
            connection.request("GET", f"/bucket/{number}")
            with connection.getresponse() as reply:
                assert reply.read() == OBJECT
    assert proxy.count("GetObject") == 20


def test_a_chunked_request_arrives_whole(server: Server, proxy: FaultProxy) -> None:
    parts = urlsplit(proxy.endpoint)
    assert parts.hostname
    with closing(http.client.HTTPConnection(parts.hostname, parts.port)) as connection:
        connection.request("PUT", "/b/k", iter([b"one", b"two"]), encode_chunked=True)
        with connection.getresponse() as reply:
            assert reply.status == 200
    assert server.requests[0][3] == b"onetwo"


@pytest.mark.parametrize(
    ("method", "target", "headers", "operation"),
    [
        ("PUT", "/b/k", {}, "PutObject"),
        ("PUT", "/b/k", {"x-amz-copy-source": "/b/j"}, "CopyObject"),
        ("PUT", "/b/k?partNumber=1&uploadId=u", {}, "UploadPart"),
        ("PUT", "/b/k?partNumber=1&uploadId=u", {"x-amz-copy-source": "/b/j"}, "UploadPartCopy"),
        ("POST", "/b/k?uploads", {}, "CreateMultipartUpload"),
        ("POST", "/b/k?uploadId=u", {}, "CompleteMultipartUpload"),
        ("DELETE", "/b/k?uploadId=u", {}, "AbortMultipartUpload"),
        ("GET", "/b?uploads", {}, "ListMultipartUploads"),
        ("POST", "/b?delete", {}, "DeleteObjects"),
        ("DELETE", "/b/k", {}, "DeleteObject"),
        ("GET", "/b?list-type=2&prefix=p%2F", {}, "ListObjectsV2"),
        ("GET", "/b/k", {}, "GetObject"),
        ("HEAD", "/b/k", {}, "HeadObject"),
        ("HEAD", "/b", {}, "HeadBucket"),
        ("PUT", "/b", {}, "CreateBucket"),
        ("GET", "/", {}, "ListBuckets"),
    ],
)
def test_operations_have_their_names(
    method: str, target: str, headers: dict[str, str], operation: str
) -> None:
    assert Request(method, target, tuple(headers.items())).operation == operation


def test_the_key_of_a_listing_is_its_prefix() -> None:
    assert Request("GET", "/b?list-type=2&prefix=p%2Fq", ()).key == "p/q"


def test_a_rule_strikes_the_calls_that_it_names(proxy: FaultProxy) -> None:
    rule = proxy.inject(answer(500, "InternalError"), "GetObject", key=r"^b", calls={2, 3})
    found = [ask(proxy, target=f"/bucket/{key}")[0] for key in ("b1", "a", "b2", "b3", "b4")]
    assert found == [200, 200, 500, 500, 200]
    assert (rule.matched, rule.hits) == (4, 2)
    proxy.inject(answer(503, "SlowDown"))
    proxy.heal()
    assert ask(proxy)[0] == 200


def test_the_first_of_two_rules_is_the_outermost(proxy: FaultProxy) -> None:
    proxy.inject(lose_reply())
    proxy.inject(answer(500, "InternalError"))
    with pytest.raises(ConnectionError):
        ask(proxy)
    assert proxy.seen[0].applied is None


def test_a_lost_request_is_not_done_and_a_lost_reply_is(server: Server, proxy: FaultProxy) -> None:
    proxy.inject(lose_request(), calls={1})
    proxy.inject(lose_reply(), calls={2})
    with pytest.raises(ConnectionError):
        ask(proxy, "PUT", body=b"x")
    assert server.requests == []
    with pytest.raises(ConnectionError):
        ask(proxy, "PUT", body=b"x")
    assert len(server.requests) == 1
    assert [(e.applied, e.answered) for e in proxy.seen] == [(None, None), (200, None)]


@pytest.mark.parametrize("reset", [False, True])
def test_a_body_is_cut_under_its_right_head(proxy: FaultProxy, reset: bool) -> None:
    proxy.inject(cut_body(10, reset=reset))
    with pytest.raises(ConnectionResetError if reset else http.client.IncompleteRead):
        ask(proxy)


def test_errors_are_those_of_s3(proxy: FaultProxy, server: Server) -> None:
    proxy.inject(slow_down(), "GetObject")
    proxy.inject(answer(301, "PermanentRedirect", x_amz_bucket_region="r"), "HeadObject")
    status, body, _ = ask(proxy)
    assert status == 503
    assert b"<Error><Code>SlowDown</Code>" in body
    status, body, headers = ask(proxy, "HEAD")
    assert (status, body, headers["x-amz-bucket-region"]) == (301, b"", "r")
    assert server.requests == []


def test_an_error_after_the_server_did_it(proxy: FaultProxy, server: Server) -> None:
    proxy.inject(answer_after(500, "InternalError"))
    assert ask(proxy, "PUT", body=b"x")[0] == 500
    assert len(server.requests) == 1
    assert (proxy.seen[0].applied, proxy.seen[0].answered) == (200, 500)


def test_bytes_are_flipped_on_both_ways(proxy: FaultProxy, server: Server) -> None:
    proxy.inject(corrupt_body(-1, 0x80), "GetObject")
    proxy.inject(corrupt_upload(1), "PutObject")
    assert ask(proxy)[1] == OBJECT[:-1] + bytes([OBJECT[-1] ^ 0x80])
    ask(proxy, "PUT", body=b"aaa")
    assert server.requests[-1][3] == b"a`a"


def test_ranges_are_answered_wrongly(proxy: FaultProxy) -> None:
    proxy.inject(answer_whole_object(), calls={1})
    proxy.inject(answer_other_range(5), calls={2})
    proxy.inject(answer_other_range(5, honest=False), calls={3})
    proxy.inject(shorten_body(3), calls={4})
    found = [ask(proxy, Range="bytes=10-19") for _ in range(4)]
    assert [status for status, _, _ in found] == [200, 206, 206, 206]
    bodies = [body for _, body, _ in found]
    assert bodies == [OBJECT, OBJECT[15:25], OBJECT[15:25], OBJECT[10:13]]
    ranges = [headers.get("Content-Range") for _, _, headers in found]
    assert ranges == [None, "bytes 15-24/100", "bytes 10-19/100", "bytes 10-19/100"]
    assert found[3][2]["Content-Length"] == "3"


def keys(body: bytes) -> list[str]:
    return [part.split("<")[0] for part in body.decode().split("<Key>")[1:]]


def test_listings_are_changed(proxy: FaultProxy) -> None:
    for number, fault in enumerate(
        [
            reorder_list(),
            duplicate_in_list(1),
            drop_from_list(-1),
            end_list_early(),
            change_list(lambda _: []),
        ]
    ):
        proxy.inject(fault, "ListObjectsV2", key=f"^{number}$")
    bodies = [ask(proxy, target=f"/bucket?list-type=2&prefix={n}")[1] for n in range(5)]
    assert [keys(body) for body in bodies] == [
        ["c", "b", "a"],
        ["a", "b", "b", "c"],
        ["a", "b"],
        ["a", "b", "c"],
        [],
    ]
    assert b"<KeyCount>4</KeyCount>" in bodies[1]
    assert b"<IsTruncated>false<" in bodies[3]
    assert b"NextContinuationToken" not in bodies[3]
    assert all(body.endswith(b"<Name>bucket</Name></ListBucketResult>") for body in bodies)


def test_conditions_do_not_arrive(proxy: FaultProxy, server: Server) -> None:
    proxy.inject(ignore_conditions())
    ask(proxy, "PUT", body=b"x", If_None_Match="*", X_Kept="1")
    headers = server.requests[0][2]
    assert "If-None-Match" not in headers
    assert headers["X-Kept"] == "1"


def test_a_request_is_held_until_it_may_go_on(proxy: FaultProxy, server: Server) -> None:
    reached, go_on = threading.Event(), threading.Event()
    proxy.inject(hold(reached, go_on), "PutObject")
    client = threading.Thread(target=ask, args=(proxy, "PUT", "/b/k", b"x"))
    client.start()
    assert reached.wait(10)
    assert server.requests == []
    go_on.set()
    client.join()
    assert len(server.requests) == 1


def test_a_fault_that_fails_is_told_at_the_end(server: Server) -> None:
    def broken(request: Request, forward: Forward) -> Reply:
        raise AssertionError("the test's own mistake")

    proxy = FaultProxy(f"http://127.0.0.1:{server.server_address[1]}")
    proxy.inject(broken)
    with pytest.raises(ConnectionError):
        ask(proxy)
    with pytest.raises(AssertionError, match="own mistake"):
        proxy.close()


def test_a_server_that_is_gone_is_seen_as_one() -> None:
    with Server() as gone:
        port = gone.server_address[1]
    with FaultProxy(f"http://127.0.0.1:{port}") as proxy, pytest.raises(ConnectionError):
        ask(proxy)


def test_the_server_is_an_address() -> None:
    for wrong in ("https://127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1"):
        with pytest.raises(ValueError, match="expected http"):
            FaultProxy(wrong)
