"""Tests of the limit on concurrent requests."""

from __future__ import annotations

import threading

import pytest

from tieredstore.contracts.usage import Prices
from tieredstore.providers.s3.lane import Gate, RetryQuota
from tieredstore.providers.s3.meter import Meter, find_file_type


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
        ("x_C/broker/.times/COMMIT_LOG/0/00000000000000000000.00000000000000000001", "TIMES"),
        ("x_C/broker/.times/T/0/", "TIMES"),
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
