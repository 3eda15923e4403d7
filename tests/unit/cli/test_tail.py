"""`tail` follows the queues of a topic on a running broker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.cli.remote import Pulled
from tieredstore.cli.verbs import brokers
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.hosts import encode_host
from tieredstore.message.record import StoredMessage, decode_record


class FakeBroker:
    """Broker with one topic. `queues` contains the first offset and the messages of each queue."""

    def __init__(self) -> None:
        self.queues: dict[int, tuple[int, list[StoredMessage]]] = {}
        self.pulls = 0

    def put(self, queue_id: int, count: int = 1, first: int = 0) -> None:
        begin, messages = self.queues.setdefault(queue_id, (first, []))
        for _ in range(count):
            offset = begin + len(messages)
            message = Message.create("orders", b"%d" % offset, queue_id=queue_id)
            record = encode_record(message, offset, 0, 1, store_host=encode_host("10.0.0.1", 1))
            messages.append(decode_record(memoryview(record)))

    def find_queues(self, topic: str) -> list[int]:
        return sorted(self.queues)

    def find_offset(self, code: RequestCode, topic: str, queue_id: int) -> int:
        begin, messages = self.queues[queue_id]
        return begin if code is RequestCode.GET_MIN_OFFSET else begin + len(messages)

    def pull(self, topic: str, queue_id: int, offset: int, *, expression: str = "*") -> Pulled:
        self.pulls += 1
        assert self.pulls < 1000, "nothing more is shown"
        begin, messages = self.queues[queue_id]
        if offset < begin:
            return Pulled([], begin)
        if offset > begin + len(messages):
            return Pulled([], begin if not begin else begin + len(messages))
        found = messages[offset - begin :][:2]
        return Pulled(found, offset + len(found))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    monkeypatch.setattr(brokers, "PAUSE_S", 0)
    monkeypatch.setattr(brokers, "LOOK_S", 0)
    found = FakeBroker()
    found.put(0, 2)
    return found


def follow(broker: FakeBroker, *, from_start: bool = True) -> Iterator[tuple[int, int]]:
    found = brokers._follow(broker, "orders", "*", from_start=from_start, follows=True)  # type: ignore[arg-type]
    return ((message.queue_id, message.queue_offset) for message in found)


def test_a_queue_that_comes_later_is_shown_from_its_first_message(broker: FakeBroker) -> None:
    rows = follow(broker)
    assert list(islice(rows, 2)) == [(0, 0), (0, 1)]
    broker.put(3, 3)
    broker.put(0)
    assert sorted(islice(rows, 4)) == [(0, 2), (3, 0), (3, 1), (3, 2)]


def test_j42_messages_that_expire_unread_are_reported_with_their_number(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    rows = follow(broker)
    assert list(islice(rows, 2)) == [(0, 0), (0, 1)]
    del broker.queues[0]
    broker.put(0, 2, first=7)
    assert list(islice(rows, 2)) == [(0, 7), (0, 8)]
    assert caplog.messages == ["orders/0: 5 messages expired before they were read, 2 to 6"]


@pytest.mark.parametrize("first", [0, 1])
def test_j46_a_topic_that_was_made_again_is_shown_from_its_start(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    broker.put(0, 3)
    rows = follow(broker)
    assert len(list(islice(rows, 5))) == 5
    del broker.queues[0]
    broker.put(0, 2, first=first)
    assert list(islice(rows, 2)) == [(0, first), (0, first + 1)]
    assert caplog.messages == ["orders/0: it ends in front of offset 5: recreated"]
