"""Commands that follow a tier or a store print new messages."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.local_stores import plain, running, small_config
from tieredstore.cli.messages.choice import MessageChoice, MessageRequest
from tieredstore.cli.messages.following import Feed, Row, StopFlag, TierFeed, follow
from tieredstore.cli.messages.stored import StoreFeed
from tieredstore.cli.messages.where import WhereFilter
from tieredstore.cli.stopping import stop_on_signals
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.local.read_only import open_read_only
from tieredstore.scan.location import locate
from tieredstore.scan.opening import open_location
from tieredstore.scan.plan import ScanBounds
from tieredstore.scan.rows import BodyForm

NAMES = ("topic", "queue_id", "queue_offset")


def asking(
    *topics: str,
    queue_id: int | None = None,
    bounds: ScanBounds | None = None,
    choice: MessageChoice | None = None,
) -> MessageRequest:
    return MessageRequest(
        topics or ("orders",),
        queue_id,
        bounds or ScanBounds(),
        choice or MessageChoice(),
        BodyForm.TEXT,
        NAMES,
    )


def places(rows: Iterable[Row]) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in NAMES) for row in rows]


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 2)
    tier.append("orders", 1, 1)
    return tier


def test_each_round_reads_behind_the_one_before(tier: GrowingTier) -> None:
    with open_location(locate(tier.url)) as opened:
        feed = TierFeed(opened, asking())
        assert places(feed.read_next()) == [("orders", 0, 0), ("orders", 0, 1), ("orders", 1, 0)]
        assert places(feed.read_next()) == []
        tier.append("orders", 1, 2)
        tier.append("other", 0, 1)
        assert places(feed.read_next()) == [("orders", 1, 1), ("orders", 1, 2)]


def test_a_pattern_takes_topics_that_come_later(tier: GrowingTier) -> None:
    with open_location(locate(tier.url)) as opened:
        feed = TierFeed(opened, asking("o*", queue_id=0))
        assert len(list(feed.read_next())) == 2
        tier.append("other", 0, 1)
        assert places(feed.read_next()) == [("other", 0, 0)]


def test_the_last_ones_come_first_and_then_what_is_behind_them(tier: GrowingTier) -> None:
    with open_location(locate(tier.url)) as opened:
        feed = TierFeed(opened, asking())
        assert places(feed.read_last(1)) == [("orders", 0, 1)]
        tier.append("orders", 0, 1)
        assert places(feed.read_next()) == [("orders", 0, 2)]


def test_a_unit_whose_message_is_not_there_yet_waits(tier: GrowingTier) -> None:
    with open_location(locate(tier.url)) as opened:
        feed = TierFeed(opened, asking(queue_id=1))
        assert len(list(feed.read_next())) == 1
        tier.append("orders", 1, 1)
        log = next((tier.root / "tier").rglob("orders/1/COMMIT_LOG/[!.]*"))
        whole = log.read_bytes()
        log.write_bytes(whole[: len(whole) - 10])
        assert places(feed.read_next()) == []
        log.write_bytes(whole)
        assert places(feed.read_next()) == [("orders", 1, 1)]


def test_what_is_left_out_is_not_looked_at_again(tier: GrowingTier) -> None:
    looked: list[int] = []

    class Spy(WhereFilter):
        def takes(self, message: object) -> bool:
            looked.append(1)
            return False

    with open_location(locate(tier.url)) as opened:
        feed = TierFeed(opened, asking(choice=MessageChoice(where=Spy("a = 1"))))
        assert list(feed.read_next()) == list(feed.read_next()) == []
    assert len(looked) == 3


class Rounds:
    """A feed that returns the next list of messages at each read, or raises an error given
    instead."""

    lacks_messages = False
    failure: Corrupt | None = None

    def __init__(self, *rounds: list[int] | Exception, stop: StopFlag) -> None:
        self._rounds = list(rounds)
        self._stop = stop

    def read_last(self, count: int) -> list[Row]:
        raise NotImplementedError

    def read_next(self) -> Iterator[Row]:
        found = self._rounds.pop(0)
        if not self._rounds:
            self._stop.set()
        if isinstance(found, Exception):
            raise found
        for number in found:
            yield {"n": number}


def test_what_cannot_be_reached_for_a_while_is_tried_again() -> None:
    stop = StopFlag()
    feed: Feed = Rounds([1, 2], Unavailable("away"), [3], [4], stop=stop)
    assert [row["n"] for row in follow(feed, stop, 0)] == [1, 2, 3, 4]


def test_what_cannot_be_reached_at_the_begin_is_an_error() -> None:
    stop = StopFlag()
    with pytest.raises(Unavailable):
        list(follow(Rounds(Unavailable("away"), [1], stop=stop), stop, 0))


def test_a_signal_ends_it_between_two_messages() -> None:
    stop = StopFlag()
    with stop_on_signals(stop):
        rows = follow(Rounds([1, 2, 3], [], stop=StopFlag()), stop, 0)
        assert next(rows) == {"n": 1}
        signal.raise_signal(signal.SIGTERM)
        assert list(rows) == []


def test_a_store_is_read_beside_its_owner_as_far_as_that_has_flushed(tmp_path: Path) -> None:
    config = small_config(tmp_path / "store")
    with running(config, SYSTEM_CLOCK) as store:
        for number in range(3):
            store.put_message(plain("orders", number % 2, number))
        store.wait_until_dispatched()
        store.flush()
        reader = open_read_only(tmp_path / "store")
        try:
            feed = StoreFeed(reader, asking("ord*"), "broker-a")
            first = list(feed.read_next())
            assert all(row["broker"] == "broker-a" for row in first)
            store.put_message(plain("orders", 1, 3))
            store.flush()
        finally:
            reader.shutdown()
    with_rest = open_read_only(tmp_path / "store")
    try:
        feed = StoreFeed(with_rest, asking("ord*"))
        assert places(feed.read_next()) == [
            ("orders", 0, 0), ("orders", 0, 1), ("orders", 1, 0), ("orders", 1, 1),
        ]  # fmt: skip
        assert places(feed.read_next()) == []
        last = StoreFeed(with_rest, asking())
        assert places(last.read_last(1)) == [("orders", 1, 1)]
        assert places(last.read_next()) == []
        with pytest.raises(Invalid, match="no topic 'ordres'; did you mean 'orders'"):
            list(StoreFeed(with_rest, asking("ordres")).read_next())
    finally:
        with_rest.shutdown()


def test_bounds_of_a_store_are_those_of_a_tier(public_a: Path) -> None:
    reader = open_read_only(public_a / "store")
    try:
        (topic, queue_id), *_ = [
            key
            for key in reader.list_queues()
            if key.topic.startswith("pub_") and reader.get_max_offset_in_queue(*key) > 8
        ]
        rows = list(StoreFeed(reader, asking(topic, queue_id=queue_id)).read_next())
        offsets = [int(str(row["queue_offset"])) for row in rows]
        times = [int(str(row["store_timestamp"])) for row in rows]
        first, since, until = offsets[2], times[3], times[6]
        bounds = ScanBounds(first, offsets[-1], since, until)
        found = list(StoreFeed(reader, asking(topic, queue_id=queue_id, bounds=bounds)).read_next())
        assert found == [
            row
            for row, offset, time in zip(rows, offsets, times, strict=True)
            if first <= offset < offsets[-1] and since <= time < until
        ]
        last = StoreFeed(
            reader,
            asking(
                topic,
                queue_id=queue_id,
                choice=MessageChoice(where=WhereFilter(f"queue_offset <= {first}")),
            ),
        )
        assert last.read_last(2) == rows[1:3]
    finally:
        reader.shutdown()


def test_j46_a_topic_that_is_made_again_longer_is_read_from_its_start(tier: GrowingTier) -> None:
    with open_location(locate(tier.url)) as opened:
        feed, last = TierFeed(opened, asking(queue_id=0)), TierFeed(opened, asking(queue_id=0))
        assert len(list(feed.read_next())) == 2
        assert len(last.read_last(1)) == 1
        tier.make_again("orders")
        tier.append("orders", 0, 5)
        expected = [("orders", 0, offset) for offset in range(5)]
        assert places(feed.read_next()) == places(last.read_next()) == expected
        assert places(feed.read_next()) == []


def test_j46_a_topic_that_is_made_again_with_as_many_messages_is_read_from_its_start(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture
) -> None:
    with open_location(locate(tier.url)) as opened:
        feed, last = TierFeed(opened, asking(queue_id=0)), TierFeed(opened, asking(queue_id=0))
        assert len(list(feed.read_next())) == len(last.read_last(2)) == 2
        tier.make_again("orders")
        tier.append("orders", 0, 2)
        expected = [("orders", 0, 0), ("orders", 0, 1)]
        assert places(feed.read_next()) == places(last.read_next()) == expected
        assert "orders/0: another message is at offset 1: recreated" in caplog.text
        assert places(feed.read_next()) == []


def test_a_message_whose_upload_has_begun_when_the_last_ones_are_read_comes_later(
    tier: GrowingTier,
) -> None:
    tier.append("orders", 1, 1)
    log = next((tier.root / "tier").rglob("orders/1/COMMIT_LOG/[!.]*"))
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) // 2])
    with open_location(locate(tier.url)) as opened:
        feed = TierFeed(opened, asking(queue_id=1))
        assert places(feed.read_last(5)) == [("orders", 1, 0)]
        log.write_bytes(whole)
        assert places(feed.read_next()) == [("orders", 1, 1)]


@pytest.mark.parametrize("topics", [("orders", "other"), ("o*",)])
def test_j42_a_topic_that_is_gone_for_a_while_ends_no_follow(
    tier: GrowingTier, topics: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    tier.append("other", 0, 1)
    with open_location(locate(tier.url)) as opened:
        feed = TierFeed(opened, asking(*topics))
        assert len(list(feed.read_next())) == 4
        tier.make_again("orders")
        assert places(feed.read_next()) == []
        assert "orders/0: the queue is gone from the tier" in caplog.text
        caplog.clear()
        tier.append("other", 0, 1)
        assert places(feed.read_next()) == [("other", 0, 1)]
        tier.make_again("other")
        assert places(feed.read_next()) == []
        assert "orders" not in caplog.text
        tier.append("orders", 0, 2)
        assert places(feed.read_next()) == [("orders", 0, 0), ("orders", 0, 1)]
        with pytest.raises(Invalid, match="no topic"):
            list(TierFeed(opened, asking("others")).read_next())


def test_j42_messages_that_expire_between_two_rounds_are_reported_with_their_number(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture
) -> None:
    with open_location(locate(tier.url)) as opened:
        feed = TierFeed(opened, asking(queue_id=0))
        assert len(list(feed.read_next())) == 2
        tier.append("orders", 0, 3)
        tier.roll("orders", 0)
        tier.append("orders", 0, 1)
        tier.expire("orders", 0)
        assert places(feed.read_next()) == [("orders", 0, 5)]
        expected = "orders/0: 3 messages expired before they were read, 2 to 4"
        assert [text for text in caplog.messages if "expired" in text] == [f"broker-a/{expected}"]


def test_j42_a_store_that_deletes_unread_messages_is_reported_with_their_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(tmp_path)
    with running(config) as store:
        for _ in range(3):
            store.put_message(plain("orders", 0))
    reader = open_read_only(tmp_path, config)
    try:
        feed = StoreFeed(reader, asking("orders"))
        assert len(list(feed.read_next())) == 3
        with running(config) as store:
            for _ in range(100):
                store.put_message(plain("orders", 0))
        files = sorted((tmp_path / "commitlog").iterdir())
        for file in files[:-1]:
            file.unlink()
        rows = list(feed.read_next())
        lost = 100 - len(rows)
        assert 0 < lost < 100
        expected = f"orders/0: {lost} messages expired before they were read, 3 to {2 + lost}"
        assert [text for text in caplog.messages if "expired" in text] == [expected]
        assert list(feed.read_next()) == []
    finally:
        reader.shutdown()
