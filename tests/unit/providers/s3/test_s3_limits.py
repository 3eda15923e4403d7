"""Rates and requests at once."""

from __future__ import annotations

import threading

import pytest

from tieredstore.clock import ManualClock
from tieredstore.contracts.usage import Prices
from tieredstore.providers.s3.limits import Gate, RetryQuota, TokenBucket
from tieredstore.providers.s3.meter import Meter, find_file_type


def bucket(rate: int) -> tuple[TokenBucket, ManualClock]:
    clock = ManualClock(0)
    return TokenBucket(rate, clock, clock.now_ms), clock


def test_a_second_s_worth_is_free_and_more_than_that_waits() -> None:
    limit, clock = bucket(10)
    assert [limit.take(1) for _ in range(10)] == [0] * 10
    assert limit.take(1) == pytest.approx(100)
    assert clock.now_ms() >= 100


def test_over_a_long_time_the_rate_is_kept() -> None:
    limit, clock = bucket(10)
    for _ in range(1000):
        limit.take(1)
    assert 98_000 < clock.now_ms() < 101_000


def test_what_is_larger_than_a_second_s_worth_passes_in_debt() -> None:
    limit, clock = bucket(10)
    limit.take(100)
    assert clock.now_ms() == pytest.approx(9000, abs=2)
    clock.advance(60_000)
    assert limit.take(10) == 0  # no more than a second's worth is saved up
    assert limit.take(1) > 0


def test_no_rate_is_no_limit() -> None:
    limit, clock = bucket(0)
    assert limit.take(1 << 60) == 0
    assert clock.now_ms() == 0


def test_what_is_urgent_does_not_wait_for_the_rest() -> None:
    limit, clock = bucket(10)
    limit.take(100)  # a long read
    assert limit.take(10, urgent=True) == 0
    assert limit.take(10, urgent=True) == pytest.approx(1000)
    assert clock.now_ms() == pytest.approx(9000 + 1000, abs=3)
    assert limit.take(1) > 1000  # a read waits for both


def test_few_requests_are_repeated_while_most_fail() -> None:
    quota = RetryQuota(most=3)
    assert [quota.take() for _ in range(5)] == [True, True, True, False, False]
    for _ in range(5):
        quota.note_success()
    assert [quota.take() for _ in range(2)] == [True, False]


def test_o02_requests_refused_together_halve_the_limit_once() -> None:
    gate = Gate(16)
    with gate.permit() as one, gate.permit() as two:
        gate.note_refusal(one)
        gate.note_refusal(two)
    assert gate.limit == 8
    with gate.permit() as three:
        gate.note_refusal(three)
    assert gate.limit == 4


def test_the_limit_never_falls_below_one_nor_rises_above_the_most() -> None:
    gate = Gate(4)
    for _ in range(10):
        with gate.permit() as wave:
            gate.note_refusal(wave)
    assert gate.limit == 1
    for _ in range(100):
        gate.note_success()
    assert gate.limit == 4


def test_more_than_the_limit_wait_for_their_turn() -> None:
    gate = Gate(1)
    entered = threading.Event()

    def second() -> None:
        with gate.permit():
            entered.set()

    with gate.permit():
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.02)
    assert entered.wait(30)
    thread.join()


@pytest.mark.parametrize(
    ("operation", "price"),
    [
        ("PutObject", 1.0),
        ("UploadPartCopy", 1.0),
        ("CompleteMultipartUpload", 1.0),
        ("ListObjectsV2", 2.0),
        ("GetObject", 3.0),
        ("HeadObject", 3.0),
        ("DeleteObjects", 4.0),
        ("AbortMultipartUpload", 4.0),
    ],
)
def test_each_operation_has_the_price_of_its_class(operation: str, price: float) -> None:
    prices = Prices(write=1e6, list=2e6, read=3e6, delete=4e6)
    assert prices.price_request(operation) == price


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("x_C/broker/COMMIT_LOG/0/CONSUME_QUEUE/abc/c.0", "CONSUME_QUEUE"),
        ("x_C/broker/T/0/COMMIT_LOG/abc/", "COMMIT_LOG"),
        ("x_C/broker/rmq_sys_INDEX/0/INDEX/abc/s", "INDEX"),
        ("x_C/broker/.writer/00000000000000000001", "EPOCH"),
        ("x_C/broker/", "OTHER"),
        ("", "OTHER"),
    ],
)
def test_a_key_tells_the_file_type(key: str, expected: str) -> None:
    assert find_file_type(key) == expected


def test_usage_adds_up() -> None:
    meter = Meter(Prices(write=1e6, transfer=float(1 << 30)))
    for status in ("200", "503", "none"):
        meter.count("PutObject", "INDEX", status, sent_bytes=5, received_bytes=2, elapsed_ms=1)
    meter.count("PutObject", "OTHER", "200", sent_bytes=1, received_bytes=0, elapsed_ms=1)
    usage = meter.usage()
    assert [(row.file_type, row.requests, row.failed) for row in usage.rows] == [
        ("INDEX", 3, 2),
        ("OTHER", 1, 0),
    ]
    assert usage.requests == 4
    assert usage.requests_by_operation == {"PutObject": 4}
    assert (usage.sent_bytes, usage.received_bytes) == (16, 6)
    assert usage.cost_usd == pytest.approx(4 + 6)
