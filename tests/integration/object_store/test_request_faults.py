"""The S3 client handles each fault of a request. Tests are named by the ids of the fault catalogue.
The server checks signatures and checksums, and is behind the fault proxy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

from tests.kit.fault_proxy.faults import (
    answer,
    answer_after,
    answer_other_range,
    answer_whole_object,
    corrupt_upload,
    cut_body,
    drop_from_list,
    duplicate_in_list,
    hold,
    lose_reply,
    lose_request,
    reorder_list,
    shorten_body,
    slow_down,
)
from tests.kit.fault_proxy.http import Forward, Reply, Request
from tests.kit.fault_proxy.proxy import FaultProxy
from tests.kit.object_store.servers import ObjectStore
from tests.kit.object_store.tiers import s3_client
from tieredstore.contracts.objects import CopiedPart
from tieredstore.errors import Busy, Invalid, TieredStoreError, Unavailable
from tieredstore.providers.s3.client import S3Client

ATTEMPTS = 3
PART = 5 << 20
DATA = bytes(range(256)) * 64
OPERATIONS: dict[str, Callable[[S3Client], Any]] = {
    "PutObject": lambda client: client.put_if_absent("new", [DATA], {"w": "1"}),
    "GetObject": lambda client: client.get_range("old", 10, 100),
    "HeadObject": lambda client: client.head("old"),
    "ListObjectsV2": lambda client: list(client.list("")),
    "DeleteObjects": lambda client: client.delete(["old"]),
    "ListMultipartUploads": lambda client: client.abort_uploads("", 0),
    "CreateMultipartUpload": lambda client: compose(client),
    "UploadPart": lambda client: compose(client),
    "UploadPartCopy": lambda client: compose(client),
    "CompleteMultipartUpload": lambda client: compose(client),
}


def compose(client: S3Client, key: str = "composed") -> bool:
    return client.compose(key, [CopiedPart("large", 0, PART), [b"the ", b"end"]], {"w": "1"})


@pytest.fixture
def proxy(strict_proxy: FaultProxy) -> FaultProxy:
    return strict_proxy


@pytest.fixture
def store(versitygw: ObjectStore) -> ObjectStore:
    """A store with the objects `old` and `large`. They were written without the proxy."""
    versitygw.put(["tier/old"], DATA)
    versitygw.put(["tier/large"], bytes(PART))
    return versitygw


OPTIONS = {"max_attempts": str(ATTEMPTS), "read_timeout_ms": "1000"}


@pytest.fixture
def client(store: ObjectStore, proxy: FaultProxy) -> Iterator[S3Client]:
    with closing(s3_client(store.through(proxy.endpoint), fast_reads="false", **OPTIONS)) as made:
        yield made


@pytest.fixture(params=["boto3", "obstore"])
def reader(
    request: pytest.FixtureRequest, store: ObjectStore, proxy: FaultProxy
) -> Iterator[S3Client]:
    """A client, once for each way to read ranges: boto3 and obstore."""
    fast = "true" if request.param == "obstore" else "false"
    with closing(s3_client(store.through(proxy.endpoint), fast_reads=fast, **OPTIONS)) as made:
        yield made


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_o01_one_failure_of_any_operation_is_not_noticed(
    client: S3Client, proxy: FaultProxy, store: ObjectStore, status: int
) -> None:
    for operation, call in OPERATIONS.items():
        rule = proxy.inject(answer(status, "InternalError"), operation, calls={1})
        if operation.endswith("Upload") or operation.startswith("UploadPart"):
            client.delete(["composed"])
        assert call(client) is not False, operation
        assert rule.hits == 1, operation
        proxy.heal()
    assert store.keys("tier/") == {
        "tier/new": len(DATA), "tier/large": PART, "tier/composed": PART + 7,
    }  # fmt: skip
    assert store.open_uploads() == 0


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("status", [500, 503])
def test_o01_a_lasting_failure_is_told_after_so_many_attempts(
    client: S3Client, proxy: FaultProxy, operation: str, status: int
) -> None:
    rule = proxy.inject(answer(status, "InternalError"), operation)
    with pytest.raises((Unavailable, Busy), match=operation):
        OPERATIONS[operation](client)
    assert rule.hits == ATTEMPTS


def test_o01_a_server_that_is_not_there_is_unavailable(store: ObjectStore) -> None:
    with FaultProxy(store.endpoint) as gone:
        nowhere = store.through(gone.endpoint)
    with closing(s3_client(nowhere, max_attempts="2")) as client:
        for operation, call in OPERATIONS.items():
            with pytest.raises((Unavailable, Busy)) as caught:
                call(client)
            if operation == "PutObject":
                assert isinstance(caught.value, (Unavailable, Busy))


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (429, "TooManyRequests")])
def test_o02_a_storm_of_refusals_makes_fewer_requests_at_once(
    store: ObjectStore, status: int, code: str
) -> None:
    """A client begins with the maximum number of concurrent requests. After many refusals it lowers
    this number."""
    most = 16
    running, peaks, lock = 0, [0, 0], threading.Lock()
    everybody = threading.Barrier(most)
    stormy = threading.Event()
    stormy.set()

    def storm(request: Request, forward: Forward) -> Reply:
        nonlocal running
        with lock:
            running += 1
            phase = 0 if stormy.is_set() else 1
            peaks[phase] = max(peaks[phase], running)
        if phase == 0 and not everybody.broken:
            with suppress(threading.BrokenBarrierError):
                everybody.wait(60)
        reply = refuse(request, forward) if phase == 0 else forward(request)
        with lock:
            running -= 1
        return reply

    refuse = answer(status, code)

    def get(client: S3Client) -> type[BaseException] | None:
        try:
            client.get_range("old", 0, 10)
        except TieredStoreError as error:
            return type(error)
        return None

    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(store.endpoint))
        proxy.inject(storm, "GetObject")
        options = {"max_attempts": "1", "max_connections": str(most), "fast_reads": "false"}
        client = stack.enter_context(closing(s3_client(store.through(proxy.endpoint), **options)))
        pool = stack.enter_context(ThreadPoolExecutor(most))
        first = list(pool.map(get, [client] * most))
        everybody.abort()
        list(pool.map(get, [client] * 8))
        stormy.clear()
        after = list(pool.map(get, [client] * 4))
    assert set(first) <= {Unavailable, Busy}
    assert peaks[0] == most
    assert peaks[1] < most // 2
    assert after == [None] * 4


@pytest.mark.parametrize("fault", [lose_reply(), lose_reply(reset=True), answer_after(500, "X")])
def test_o03_a_put_whose_reply_is_lost_is_there_once(
    client: S3Client, proxy: FaultProxy, store: ObjectStore, fault: Any
) -> None:
    """A put whose reply is lost creates one object. The second attempt finds the first attempt's
    object, and the client cannot know that it wrote the object itself."""
    proxy.inject(fault, "PutObject", calls={1})
    assert client.put_if_absent("new", [DATA], {"w": "1"}) is False
    assert [e.applied for e in proxy.seen if e.operation == "PutObject"] == [200, 412]
    head = client.head("new")
    assert head is not None
    assert (head.size_bytes, head.metadata) == (len(DATA), {"w": "1"})


def test_o03_a_put_without_any_reply_is_unavailable_not_busy(
    client: S3Client, proxy: FaultProxy, store: ObjectStore
) -> None:
    """A put without any reply raises Unavailable instead of Busy, because the write may have been
    applied. After Busy a caller would write again."""
    proxy.inject(lose_reply(), "PutObject", calls={1})
    proxy.inject(answer(503, "SlowDown"), "PutObject", calls=range(2, 10))
    with pytest.raises(Unavailable):
        client.put_if_absent("new", [DATA], {})
    assert store.keys("tier/new") == {"tier/new": len(DATA)}


def test_o03_a_time_out_after_the_server_did_it(
    client: S3Client, proxy: FaultProxy, store: ObjectStore
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    proxy.inject(hold(reached, go_on, applied=True), "PutObject", calls={1})
    try:
        assert client.put_if_absent("new", [DATA], {"w": "1"}) is False
    finally:
        go_on.set()
    assert store.keys("tier/new") == {"tier/new": len(DATA)}


def test_o03_a_completion_whose_reply_is_lost_publishes_once(
    client: S3Client, proxy: FaultProxy, store: ObjectStore
) -> None:
    proxy.inject(lose_reply(), "CompleteMultipartUpload", calls={1})
    compose(client)
    assert store.keys("tier/composed") == {"tier/composed": PART + 7}
    assert store.open_uploads() == 0


def test_o03_a_deletion_whose_reply_is_lost_is_done(
    client: S3Client, proxy: FaultProxy, store: ObjectStore
) -> None:
    proxy.inject(lose_reply(), "DeleteObjects", calls={1})
    client.delete(["old", "never there"])
    assert store.keys("tier/") == {"tier/large": PART}


def test_o04_the_three_answers_to_a_condition_are_three_things(
    client: S3Client, proxy: FaultProxy, store: ObjectStore
) -> None:
    assert client.put_if_absent("old", [b"other"], {}) is False
    assert client.get_range("old", 0, 5) == DATA[:5]
    proxy.inject(answer(409, "ConditionalRequestConflict"), "PutObject")
    with pytest.raises(Busy):
        client.put_if_absent("new", [DATA], {})
    proxy.heal()
    assert client.head("new") is None
    assert client.get_range("new", 0, 5) is None
    with pytest.raises(Unavailable, match="new is gone"):
        client.compose("composed", [CopiedPart("new", 0, PART), [b"x"]], {})
    assert compose(client) is True
    assert compose(client) is False
    assert store.open_uploads() == 0


@pytest.mark.parametrize("reset", [False, True])
def test_o05_a_body_cut_short_is_resumed_where_it_was_cut(
    reader: S3Client, proxy: FaultProxy, reset: bool
) -> None:
    proxy.inject(cut_body(1000, reset=reset), "GetObject", calls={1})
    assert reader.get_range("old", 100, 8000) == DATA[100:8100]
    assert proxy.count("GetObject") == 2


def test_o05_bodies_that_are_always_cut_short_are_unavailable(
    reader: S3Client, proxy: FaultProxy
) -> None:
    proxy.inject(cut_body(0), "GetObject")
    with pytest.raises(Unavailable, match="expected 8000 bytes, found 0"):
        reader.get_range("old", 100, 8000)
    assert ATTEMPTS <= proxy.count("GetObject") <= ATTEMPTS + 1  # obstore's comes before


def test_o05_a_request_cut_short_is_sent_again(
    client: S3Client, proxy: FaultProxy, store: ObjectStore
) -> None:
    proxy.inject(lose_request(), "PutObject", "UploadPart", calls={1, 2})
    assert client.put_if_absent("new", [DATA], {}) is True
    assert compose(client) is True
    assert store.keys("tier/new") == {"tier/new": len(DATA)}


@pytest.mark.parametrize("operation", ["PutObject", "UploadPart"])
def test_o05_bytes_damaged_on_their_way_up_are_refused_and_sent_again(
    client: S3Client, proxy: FaultProxy, operation: str
) -> None:
    rule = proxy.inject(corrupt_upload(3), operation, calls={1})
    try:
        assert OPERATIONS[operation](client) is True
    except Unavailable as error:
        assert "damaged" in str(error)  # noqa: PT017 - either is right, silence is not
        assert OPERATIONS[operation](client) is True
    assert rule.hits == 1
    if operation == "PutObject":
        assert client.get_range("new", 0, len(DATA)) == DATA
    else:
        assert client.get_range("composed", PART, 10) == b"the end"


@pytest.mark.parametrize(
    "fault",
    [
        answer_whole_object(),
        answer_other_range(5),
        answer_other_range(-5),
        shorten_body(50),
        answer(200, ""),
    ],
    ids=["whole", "later", "earlier", "short", "no-range"],
)
def test_o06_another_range_than_the_one_asked_for_is_never_taken_for_it(
    reader: S3Client, proxy: FaultProxy, fault: Any
) -> None:
    proxy.inject(fault, "GetObject", calls={1})
    try:
        assert reader.get_range("old", 10, 100) == DATA[10:110]
    except Unavailable as error:
        assert "GetObject" in str(error)  # noqa: PT017 - either is right, other bytes are not
    assert reader.get_range("old", 10, 100) == DATA[10:110]


@pytest.mark.parametrize("count", [1000, 1001, 2000])
def test_o07_every_key_is_listed_around_the_edges_of_pages(
    versitygw: ObjectStore, count: int
) -> None:
    names = [f"k/{number:05d}" for number in range(count)]
    versitygw.put(f"tier/{name}" for name in names)
    with closing(s3_client(versitygw)) as client:
        assert [found.key for found in client.list("k/")] == names
        assert [found.key for found in client.list("k/", names[-2])] == names[-1:]
        client.delete(names)
        assert list(client.list("k/")) == []


@pytest.mark.parametrize(
    "fault", [duplicate_in_list(1), reorder_list()], ids=["duplicated", "reordered"]
)
def test_o07_a_listing_out_of_order_is_an_error(
    client: S3Client, proxy: FaultProxy, fault: Any
) -> None:
    proxy.inject(fault, "ListObjectsV2")
    with pytest.raises(Unavailable, match="in order"):
        list(client.list(""))


def test_o07_a_page_that_counts_other_keys_than_it_has_is_an_error(
    client: S3Client, proxy: FaultProxy
) -> None:
    def miscount(request: Request, forward: Forward) -> Reply:
        reply = drop_from_list()(request, forward)
        return reply.with_body(reply.body.replace(b"<KeyCount>1<", b"<KeyCount>2<"))

    proxy.inject(miscount, "ListObjectsV2")
    with pytest.raises(Unavailable, match="2 keys and has 1"):
        list(client.list(""))


@pytest.mark.parametrize(
    "fault",
    [
        answer(500, "InternalError"),
        slow_down(),
        answer(200, "InternalError"),
        answer(403, "AccessDenied"),
        answer(404, "NoSuchBucket"),
        lose_reply(),
        cut_body(40),
        shorten_body(40),
        shorten_body(0),
    ],
    ids=["500", "slow-down", "200-error", "403", "no-bucket", "lost", "cut", "short", "empty"],
)
def test_o07_an_error_of_a_listing_is_never_an_empty_one(
    client: S3Client, proxy: FaultProxy, fault: Any
) -> None:
    proxy.inject(fault, "ListObjectsV2")
    with pytest.raises((Unavailable, Invalid)):
        list(client.list(""))


def test_o07_the_second_page_failing_is_not_the_end(
    client: S3Client, proxy: FaultProxy, store: ObjectStore
) -> None:
    store.put(f"tier/z{number:04d}" for number in range(1001))
    proxy.inject(answer(500, "InternalError"), "ListObjectsV2", calls=range(2, 99))
    with pytest.raises(Unavailable):
        list(client.list("z"))


def test_o10_an_expired_token_is_renewed_once(client: S3Client, proxy: FaultProxy) -> None:
    rule = proxy.inject(answer(400, "ExpiredToken"), "GetObject", calls={1})
    assert client.get_range("old", 0, 10) == DATA[:10]
    assert rule.hits == 1


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (answer(400, "ExpiredToken"), "expired"),
        (answer(403, "RequestTimeTooSkewed", date="Sat, 01 Jan 2000 00:00:00 GMT"), "clock"),
        (answer(301, "PermanentRedirect", x_amz_bucket_region="eu-west-3"), "eu-west-3"),
        (answer(403, "AccessDenied"), "permission denied"),
        (answer(403, "InvalidAccessKeyId"), "access key"),
        (answer(403, "SignatureDoesNotMatch"), "secret key"),
    ],
    ids=["expired", "skew", "region", "denied", "key", "signature"],
)
def test_o10_what_is_wrong_with_who_and_where_is_one_clear_line(
    client: S3Client, proxy: FaultProxy, fault: Any, text: str
) -> None:
    proxy.inject(fault)
    for operation, call in OPERATIONS.items():
        expected = ": " if operation == "HeadObject" else text  # which has a status and no code
        with pytest.raises((Unavailable, Invalid), match=expected) as caught:
            call(client)
        assert "\n" not in str(caught.value), operation


def test_o10_wrong_keys_are_one_clear_line(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with closing(s3_client(store)) as client, pytest.raises(Invalid, match="secret key") as caught:
        list(client.list(""))
    assert "wrong-secret" not in str(caught.value)
