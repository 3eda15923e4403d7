"""Tests of S3Client with wrong, late or missing replies."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.kit.s3.scripted_server import (
    DATE,
    DATE_MS,
    Reply,
    Request,
    ScriptedServer,
    listing,
    ranged,
    refusal,
    s3_client,
)
from tieredstore.contracts.objects import CopiedPart
from tieredstore.errors import Busy, Corrupt, Invalid, TieredStoreError, Unavailable
from tieredstore.providers.s3.client import S3Client
from tieredstore.providers.s3.reading import RangeReader

UPLOAD = Reply(
    body=b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
)
PART = Reply(headers={"ETag": '"p"'})
COMPLETED = Reply(body=b"<CompleteMultipartUploadResult/>")
GONE = Reply(204)
TIME = "2026-11-21T12:00:00.000Z"


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[S3Client]:
    with s3_client(server.url) as client:
        yield client


def put(client: S3Client) -> bool:
    return client.put_if_absent("k", [b"data"], {})


CALLS: dict[str, Callable[[S3Client], object]] = {
    "put": put,
    "get": lambda client: client.get_range("k", 0, 4),
    "head": lambda client: client.head("k"),
    "list": lambda client: list(client.list("p/")),
    "delete": lambda client: client.delete(["k"]),
    "compose": lambda client: client.compose("k", [[b"data"]], {}),
    "abort": lambda client: client.abort_uploads("", 0),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_o01_a_failing_endpoint_is_tried_again_within_the_attempts_and_then_unavailable(
    server: ScriptedServer, client: S3Client, call: str, status: int
) -> None:
    server.otherwise = lambda _: Reply(status)
    with pytest.raises(Unavailable, match="s3://tier/"):
        CALLS[call](client)
    first = server.requests[0].operation
    assert [request.operation for request in server.requests].count(first) == 2


@pytest.mark.parametrize("call", CALLS)
def test_o01_a_dropped_connection_is_tried_again_and_then_unavailable(
    server: ScriptedServer, client: S3Client, call: str
) -> None:
    server.otherwise = lambda _: Reply(drop=True)
    with pytest.raises(Unavailable, match="s3://tier/"):
        CALLS[call](client)
    assert len(server.requests) == 2


def test_o01_one_failure_goes_unnoticed(server: ScriptedServer, client: S3Client) -> None:
    server.script = [Reply(500), Reply()]
    assert put(client)
    server.script = [Reply(drop=True), ranged(b"data", 0, 4)]
    assert client.get_range("k", 0, 4) == b"data"


@pytest.mark.parametrize("answer", [refusal(503, "SlowDown"), refusal(429, "TooManyRequests")])
def test_o02_a_refused_write_is_busy_since_surely_nothing_was_written(
    server: ScriptedServer, client: S3Client, answer: Reply
) -> None:
    server.otherwise = lambda _: answer
    with pytest.raises(Busy, match="fewer requests"):
        put(client)


@pytest.mark.parametrize(
    ("answer", "limit", "kind"),
    [
        (refusal(503, "SlowDown"), 4, Busy),
        (refusal(400, "ThrottlingException"), 4, Busy),
        (refusal(429, "SomethingNew"), 4, Busy),
        (Reply(429), 4, Busy),
        (refusal(503, "ServiceUnavailable"), 4, Unavailable),  # it may have been applied
        (Reply(503), 4, Unavailable),
        (refusal(500, "InternalError"), 8, Unavailable),
        (Reply(502), 8, Unavailable),
        (refusal(409, "ConditionalRequestConflict"), 8, Busy),
        (refusal(403, "AccessDenied"), 8, Invalid),
        (refusal(400, "InvalidArgument"), 8, Invalid),
    ],
)
def test_o02_only_an_endpoint_that_asks_for_less_gets_less_and_only_a_refusal_is_sure(
    server: ScriptedServer, answer: Reply, limit: int, kind: type[TieredStoreError]
) -> None:
    server.otherwise = lambda _: answer
    with s3_client(server.url, tieredStoreS3MaxConnections=8) as client:
        with pytest.raises(TieredStoreError) as raised:
            put(client)
        assert type(raised.value) is kind
        assert ("may have been applied" in str(raised.value)) == (kind is Unavailable)
        assert client._lane.gate.limit == limit


def test_o02_slow_down_halves_the_requests_at_once_and_success_brings_them_back(
    server: ScriptedServer,
) -> None:
    with s3_client(server.url, tieredStoreS3MaxConnections=8) as client:
        gate = client._lane.gate
        server.otherwise = lambda _: refusal(503, "SlowDown")
        for expected in (4, 2, 1, 1):
            with pytest.raises(Busy):
                put(client)
            assert gate.limit == expected
        server.otherwise = lambda _: Reply()
        for _ in range(8 * 8):
            put(client)
        assert gate.limit == 8


def test_o03_a_write_whose_reply_was_lost_finds_its_key_taken(
    server: ScriptedServer, client: S3Client
) -> None:
    server.script = [Reply(drop=True), refusal(412, "PreconditionFailed")]
    assert put(client) is False  # the caller compares the stored object


def test_o03_a_refusal_after_a_lost_reply_does_not_count_as_surely_not_written(
    server: ScriptedServer, client: S3Client
) -> None:
    server.script = [Reply(drop=True), refusal(503, "SlowDown")]
    with pytest.raises(Unavailable, match="may have been applied"):
        put(client)


def test_o03_a_completion_whose_reply_was_lost_finds_its_key_taken(
    server: ScriptedServer, client: S3Client
) -> None:
    server.script = [
        UPLOAD,
        PART,
        Reply(drop=True),
        refusal(404, "NoSuchUpload"),
        Reply(headers={"Last-Modified": "Sat, 21 Nov 2026 12:00:00 GMT"}),
        GONE,
    ]
    assert client.compose("k", [[b"data"]], {}) is False


def test_o03_an_upload_that_is_gone_without_its_object_is_not_taken_for_success(
    server: ScriptedServer, client: S3Client
) -> None:
    server.script = [UPLOAD, PART, refusal(404, "NoSuchUpload"), Reply(404), GONE]
    with pytest.raises(Unavailable, match="multipart upload is gone"):
        client.compose("k", [[b"data"]], {})


def test_o04_conditions_have_three_answers(server: ScriptedServer, client: S3Client) -> None:
    server.script = [refusal(409, "ConditionalRequestConflict")]
    with pytest.raises(Busy):
        put(client)
    server.script = [refusal(412, "PreconditionFailed")]
    assert put(client) is False
    server.script = [refusal(404, "NoSuchKey")]
    assert client.get_range("k", 0, 1) is None


@pytest.mark.parametrize(
    ("failing", "before"),
    [("UploadPart", [UPLOAD]), ("CompleteMultipartUpload", [UPLOAD, PART])],
)
def test_a_multipart_upload_that_fails_is_aborted(
    server: ScriptedServer, client: S3Client, failing: str, before: list[Reply]
) -> None:
    server.script = [*before, refusal(403, "AccessDenied"), GONE]
    with pytest.raises(Invalid, match=failing):
        client.compose("k", [[b"data"]], {})
    assert server.requests[-1].method == "DELETE"
    assert server.requests[-1].query == {"uploadId": "u1"}


def test_an_abort_that_fails_does_not_hide_why(
    server: ScriptedServer, client: S3Client, caplog: pytest.LogCaptureFixture
) -> None:
    server.script = [UPLOAD, refusal(403, "AccessDenied"), Reply(500), Reply(500)]
    with caplog.at_level(logging.WARNING), pytest.raises(Invalid, match="UploadPart"):
        client.compose("k", [[b"data"]], {})
    assert "unfinished upload" in caplog.text


def test_a_completion_that_fails_behind_status_200_is_a_failure(
    server: ScriptedServer, client: S3Client
) -> None:
    failed = Reply(200, refusal(200, "InternalError").body)
    server.script = [UPLOAD, PART, failed, failed, GONE]
    with pytest.raises(Unavailable):
        client.compose("k", [[b"data"]], {})


def test_o05_a_body_that_ends_early_is_read_on_from_there(
    server: ScriptedServer, client: S3Client
) -> None:
    server.script = [ranged(b"0123456789", 5, 100, cut=4), ranged(b"456789", 9, 100)]
    assert client.get_range("k", 5, 10) == b"0123456789"
    assert [request.headers["range"] for request in server.requests] == ["bytes=5-14", "bytes=9-14"]
    assert server.requests[1].headers["if-match"] == '"e"'


def test_o05_a_body_that_always_ends_early_is_unavailable_and_never_short(
    server: ScriptedServer, client: S3Client
) -> None:
    server.otherwise = lambda _: ranged(b"0123456789", 0, 100, cut=0)
    with pytest.raises(Unavailable, match="expected 10 bytes, found 0"):
        client.get_range("k", 0, 10)
    assert len(server.requests) == 2


def test_o05_a_rest_of_another_object_is_not_joined_to_it(
    server: ScriptedServer, client: S3Client
) -> None:
    server.script = [
        ranged(b"0123456789", 0, 100, cut=4),
        refusal(412, "PreconditionFailed"),
    ]
    with pytest.raises(Unavailable, match="changed while it was read"):
        client.get_range("k", 0, 10)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Reply(200, b"0123"), "status 206, found 200"),
        (Reply(206, b"0123"), "Content-Range ''"),
        (ranged(b"0123", 0, 100), "bytes 0-3/100"),
        (ranged(b"01", 4, 100), "bytes 4-5/100"),
        (ranged(b"01234567", 4, 100), "bytes 4-11/100"),
        (ranged(b"0123", 4, 6), "bytes 4-7/6"),
        (Reply(206, b"012", {"Content-Range": "bytes 4-7/100"}), "with 3 bytes"),
        (Reply(206, b"0123", {"Content-Range": "lines 4-7/100"}), "lines 4-7/100"),
    ],
)
def test_o06_other_bytes_than_asked_for_are_detected(
    server: ScriptedServer, client: S3Client, answer: Reply, told: str
) -> None:
    server.otherwise = lambda _: answer
    with pytest.raises(Unavailable, match=told):
        client.get_range("k", 4, 4)


def test_a_range_across_the_end_is_what_there_is(server: ScriptedServer, client: S3Client) -> None:
    server.script = [ranged(b"89", 8, 10), ranged(b"89", 8, "*")]
    assert client.get_range("k", 8, 5) == b"89"
    with pytest.raises(Unavailable, match=r"bytes 8-9/\*"):
        client.get_range("k", 8, 5)  # the object's size is not told: it may be longer


@pytest.mark.parametrize(
    ("pages", "told"),
    [
        ([listing(["p/b", "p/a"])], "p/a"),
        ([listing(["p/a", "p/a"])], "p/a"),
        ([listing(["p/a"], token="t"), listing(["p/a"])], "p/a"),
        ([listing(["q/a"])], "outside"),
        ([listing(["p/a"], count=2)], "has 2 keys and has 1"),
        ([listing([], token="t"), listing([], token="t")], "not where"),
        ([listing(["p/a"], token="t"), Reply(500), Reply(500)], "failed"),
        ([Reply(200, b"<Error><Code>InternalError</Code></Error>")] * 2, "ListObjectsV2"),
        ([Reply(200, b"not xml")] * 2, "ListObjectsV2"),
    ],
)
def test_o07_a_wrong_page_is_an_error_and_never_the_end(
    server: ScriptedServer, client: S3Client, pages: list[Reply], told: str
) -> None:
    server.script = list(pages)
    with pytest.raises(Unavailable, match=told):
        list(client.list("p/"))


def test_o07_pages_are_asked_for_where_the_last_one_ended(
    server: ScriptedServer, client: S3Client
) -> None:
    server.script = [listing(["p/a"], token="t 1"), listing([], token="t2"), listing(["p/b"])]
    assert [found.key for found in client.list("p/", "p/")] == ["p/a", "p/b"]
    assert [r.query.get("continuation-token") for r in server.requests] == [None, "t 1", "t2"]


@pytest.mark.parametrize(("cutoff_ms", "aborted"), [(DATE_MS - 1, 0), (DATE_MS, 1)])
def test_o08_an_upload_is_aborted_once_it_is_old_enough(
    server: ScriptedServer, client: S3Client, cutoff_ms: int, aborted: int
) -> None:
    upload = (
        b"<Upload><Key>k</Key><UploadId>u</UploadId>"
        b"<Initiated>2026-11-21T12:00:00.000Z</Initiated></Upload>"
    )
    body = b"<ListMultipartUploadsResult>%s</ListMultipartUploadsResult>" % upload
    server.script = [Reply(body=body), GONE]
    assert client.abort_uploads("", cutoff_ms) == aborted
    assert len(server.requests) == 1 + aborted


def test_o08_an_upload_that_somebody_completed_meanwhile_is_none_of_ours(
    server: ScriptedServer, client: S3Client
) -> None:
    upload = (
        b"<Upload><Key>k</Key><UploadId>u</UploadId>"
        b"<Initiated>2026-11-21T12:00:00.000Z</Initiated></Upload>"
    )
    body = b"<ListMultipartUploadsResult>%s</ListMultipartUploadsResult>" % upload
    server.script = [Reply(body=body), refusal(404, "NoSuchUpload")]
    assert client.abort_uploads("", DATE_MS) == 0


def test_o09_an_archived_object_is_named(server: ScriptedServer, client: S3Client) -> None:
    server.script = [refusal(403, "InvalidObjectState")]
    with pytest.raises(Corrupt, match="archived"):
        client.get_range("k", 0, 1)


def test_o10_expired_credentials_are_looked_up_again_once(
    server: ScriptedServer, client: S3Client
) -> None:
    server.script = [refusal(400, "ExpiredToken"), Reply()]
    assert put(client)
    server.script = [refusal(400, "ExpiredToken")] * 2
    with pytest.raises(Unavailable, match="credentials have expired"):
        put(client)
    assert len(server.requests) == 4


def test_o10_expired_credentials_are_looked_up_again_when_a_head_cannot_say_so(
    server: ScriptedServer, client: S3Client
) -> None:
    expired = [Reply(400)] * 2  # boto3 asks for the bucket's region, too
    server.script = [*expired, Reply(headers={"Last-Modified": DATE})]
    assert client.head("k") is not None
    server.script = [*expired, *expired]
    with pytest.raises(TieredStoreError, match="HeadObject"):
        client.head("k")
    assert len(server.requests) == 7


def without(field: str, *elements: str) -> Reply:
    """Return a listing whose elements lack `field`."""
    fields = {"Key": "p/k", "Size": "1", "LastModified": TIME, "UploadId": "u", "Initiated": TIME}
    texts = [f"<{name}>{text}</{name}>" for name, text in fields.items() if name != field]
    body = "".join(f"<{e}>{''.join(texts)}</{e}>" for e in elements)
    return Reply(body=f"<R><IsTruncated>false</IsTruncated>{body}</R>".encode())


@pytest.mark.parametrize(
    ("call", "replies", "missing"),
    [
        ("head", [Reply()], "LastModified"),
        ("list", [without("Key", "Contents")], "outside"),
        ("list", [without("Size", "Contents")], "Size"),
        ("list", [without("LastModified", "Contents")], "LastModified"),
        ("abort", [without("UploadId", "Upload")], "UploadId"),
        ("abort", [without("Initiated", "Upload")], "Initiated"),
        ("compose", [Reply(body=b"<InitiateMultipartUploadResult/>")], "UploadId"),
        ("compose", [UPLOAD, Reply(), GONE], "ETag"),
        ("copy", [UPLOAD, Reply(body=b"<CopyPartResult/>"), GONE], "ETag"),
    ],
)
def test_an_answer_without_a_field_is_unavailable(
    server: ScriptedServer, client: S3Client, call: str, replies: list[Reply], missing: str
) -> None:
    copy = {"copy": lambda client: client.compose("k", [CopiedPart("source", 0, 4)], {})}
    server.script = replies
    with pytest.raises(Unavailable, match=missing):
        (CALLS | copy)[call](client)


def test_o03_a_lost_reply_counts_after_credentials_were_looked_up_again(
    server: ScriptedServer, client: S3Client
) -> None:
    server.script = [
        Reply(drop=True),
        refusal(400, "ExpiredToken"),
        refusal(409, "ConditionalRequestConflict"),
    ]
    with pytest.raises(Unavailable, match="may have been applied"):
        put(client)


def test_o03_an_answer_that_cannot_be_read_does_not_say_that_nothing_was_done(
    server: ScriptedServer, client: S3Client
) -> None:
    server.script = [Reply(headers={"x-amz-object-size": "many"})]
    with pytest.raises(Unavailable, match="cannot be read"):
        put(client)


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        (refusal(403, "RequestTimeTooSkewed"), Unavailable, "clock is wrong: .* 12:00:00"),
        (refusal(403, "AccessDenied"), Invalid, "permission denied"),
        (refusal(403, "InvalidAccessKeyId"), Invalid, "access key is not known"),
        (refusal(403, "SignatureDoesNotMatch"), Invalid, "secret key does not belong"),
        (refusal(403, "Whatever"), Invalid, "Whatever.*the server's own words"),
        (refusal(404, "NoSuchBucket"), Invalid, "bucket does not exist"),
        (
            refusal(400, "AuthorizationHeaderMalformed", "<Region>us-west-2</Region>"),
            Invalid,
            "in region us-west-2: set tieredStoreS3Region",
        ),
        (refusal(400, "KMS.DisabledException"), Invalid, "KMS key cannot be used"),
        (refusal(400, "BadDigest"), Unavailable, "damaged"),
        (refusal(400, "IncompleteBody"), Unavailable, "did not get the whole"),
        (refusal(409, "OperationAborted"), Unavailable, "another request"),
        (refusal(429, "SomethingNew"), Unavailable, r"fewer requests \(SomethingNew\)"),
        (refusal(501, "NotImplemented"), Invalid, "does not implement"),
    ],
)
def test_o10_a_refusal_is_one_clear_line(
    server: ScriptedServer,
    client: S3Client,
    answer: Reply,
    kind: type[TieredStoreError],
    told: str,
) -> None:
    server.otherwise = lambda _: answer
    with pytest.raises(kind, match=told) as caught:
        client.get_range("k", 0, 1)
    assert "GetObject s3://tier/k" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_o10_of_what_an_endpoint_says_300_characters_are_told(
    server: ScriptedServer, client: S3Client
) -> None:
    said = "<Error><Code>Whatever</Code><Message>" + 299 * "a" + 500 * "b" + "</Message></Error>"
    server.otherwise = lambda _: Reply(400, said.encode())
    with pytest.raises(Invalid) as caught:
        client.get_range("k", 0, 1)
    assert str(caught.value).endswith("(Whatever): " + 299 * "a" + "b")


def errors_of(*codes: str) -> Reply:
    errors = "".join(f"<Error><Key>{c}</Key><Code>{c}</Code></Error>" for c in codes)
    return Reply(body=f"<DeleteResult>{errors}</DeleteResult>".encode())


def test_a_key_that_could_not_be_deleted_is_tried_again_alone(
    server: ScriptedServer, client: S3Client
) -> None:
    server.script = [errors_of("InternalError", "NoSuchKey"), errors_of()]
    client.delete(["a", "InternalError", "NoSuchKey"])
    assert server.requests[1].body.count(b"<Key>") == 1
    assert b"<Key>InternalError</Key>" in server.requests[1].body


@pytest.mark.parametrize(
    ("code", "kind"), [("InternalError", Unavailable), ("AccessDenied", Invalid)]
)
def test_keys_that_are_still_there_are_named(
    server: ScriptedServer, client: S3Client, code: str, kind: type[TieredStoreError]
) -> None:
    server.otherwise = lambda _: errors_of(code)
    with pytest.raises(kind, match=f"1 of 2 keys are still there.*{code}|1 of 1.*{code}"):
        client.delete(["a", code])


def test_a_copy_that_fails_behind_status_200_is_a_failure(
    server: ScriptedServer, client: S3Client
) -> None:
    def answer(request: Request) -> Reply:
        if request.operation == "POST ?uploads":
            return UPLOAD
        if request.method == "PUT":
            return Reply(200, refusal(200, "InternalError").body)
        return GONE

    server.otherwise = answer
    with pytest.raises(Unavailable, match="UploadPartCopy"):
        client.compose("k", [CopiedPart("s", 0, 5 << 20)], {})


def test_the_servers_clock_is_that_of_its_answers(server: ScriptedServer, client: S3Client) -> None:
    server.otherwise = lambda _: listing([])
    assert 0 <= client.now_ms() - DATE_MS < 60_000
    client.now_ms()
    assert len(server.requests) == 1


def test_an_endpoint_that_cannot_be_reached_is_one_clear_line(server: ScriptedServer) -> None:
    with socket.socket() as held:  # no server listens there, and the port stays taken
        held.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{held.getsockname()[1]}"
        with s3_client(closed) as client, pytest.raises(Unavailable) as caught:
            put(client)
    # what to look at when it is mistyped
    assert f": cannot connect to {closed} (" in str(caught.value)


@pytest.mark.parametrize("size_bytes", [20_000, 64 << 10, 17 << 20])
def test_a_body_that_comes_too_slowly_is_given_up(server: ScriptedServer, size_bytes: int) -> None:
    body = b"x" * size_bytes
    server.otherwise = lambda _: ranged(body, 0, len(body))
    ticks = iter(range(0, 10_000, 100))
    with s3_client(server.url) as client:
        reader = RangeReader(client._lane, client._place, 1, 10_000, monotonic=lambda: next(ticks))
        with pytest.raises(Unavailable, match="too slowly"):
            reader.read("k", 0, len(body))


def test_what_came_of_a_slow_body_is_not_asked_for_again(server: ScriptedServer) -> None:
    body = bytes(range(256)) * (9 << 12)  # more than one look at a socket can find

    def answer(request: Request) -> Reply:
        first = int(request.headers["range"].removeprefix("bytes=").partition("-")[0])
        return ranged(body[first:], first, len(body))

    server.otherwise = answer
    ticks = iter([0, 0])
    with s3_client(server.url) as client:
        reader = RangeReader(
            client._lane, client._place, 2, 10_000, monotonic=lambda: next(ticks, 100)
        )
        assert reader.read("k", 0, len(body)) == body
    asked = [request.headers["range"] for request in server.requests]
    assert len(asked) == 2
    assert asked[1] != asked[0]


def test_a_request_counts_as_running_until_its_body_is_read(
    server: ScriptedServer, client: S3Client
) -> None:
    gate = client._lane.find_gate(is_read=True)
    running = client._lane.call(
        "get_object", "a read", key="k", consume=lambda _: gate._running, Bucket="tier", Key="k"
    )
    assert (running, gate._running) == (1, 0)
