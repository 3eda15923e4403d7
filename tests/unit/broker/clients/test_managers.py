"""Tests of producers, consumers and locks: registration, notification, expiry."""

from __future__ import annotations

import pytest

from tests.kit.client_sessions import NotingSession
from tieredstore.broker.clients.consumers import (
    MAX_CHARACTERS,
    MAX_LOCKS,
    MAX_SUBSCRIPTIONS,
    ConsumerManager,
    ConsumerSettings,
    ProducerManager,
    RebalanceLocks,
)
from tieredstore.broker.clients.session import Subscription
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Invalid

SETTINGS = ConsumerSettings()
ALL = {"T": Subscription("T")}


def test_members_are_told_when_one_comes_goes_or_subscribes_to_another_topic() -> None:
    consumers = ConsumerManager(ManualClock())
    first, second = NotingSession("1"), NotingSession("2")
    assert consumers.register("g", first, SETTINGS, ALL)
    assert not consumers.register("g", first, SETTINGS, ALL)
    assert first.notified == ["g"]
    assert consumers.register("g", second, SETTINGS, ALL)
    assert (first.notified, second.notified) == (["g"] * 2, ["g"])
    assert consumers.register("g", second, SETTINGS, ALL | {"U": Subscription("U")})
    assert len(first.notified) == 3
    consumers.remove_session(second)
    assert len(first.notified) == 4
    assert consumers.list_client_ids("g") == ["1"]
    consumers.unregister("g", first)
    assert consumers.find_group("g") is None
    assert len(first.notified) == 4


def test_members_of_a_silent_group_are_not_told() -> None:
    consumers = ConsumerManager(ManualClock())
    session = NotingSession("1")
    assert consumers.register("g", session, SETTINGS, ALL, notify=False)
    assert session.notified == []


def test_a_client_that_connects_anew_is_one_member() -> None:
    consumers = ConsumerManager(ManualClock())
    old, new = NotingSession("1"), NotingSession("1")
    consumers.register("g", old, SETTINGS, ALL)
    consumers.register("g", new, SETTINGS, ALL)
    assert consumers.list_client_ids("g") == ["1"]
    consumers.remove_session(old)
    assert consumers.list_client_ids("g") == ["1"]


def test_the_newest_subscription_counts() -> None:
    consumers = ConsumerManager(ManualClock())
    session = NotingSession("1")
    for tags, version in (("A", 1), ("B", 2), ("C", 1)):
        consumers.register(
            "g", session, SETTINGS, {"T": Subscription.parse("T", tags, None, version)}
        )
    found = consumers.find_subscription("g", "T")
    assert found is not None
    assert found.expression == "B"
    assert consumers.find_subscription("g", "U") is None
    assert consumers.find_subscription("h", "T") is None
    assert consumers.list_groups_of_topic("T") == {"g"}


def test_clients_that_are_silent_for_two_minutes_are_forgotten() -> None:
    clock = ManualClock()
    consumers, producers = ConsumerManager(clock), ProducerManager(clock)
    silent, heard = NotingSession("1"), NotingSession("2")
    for session in (silent, heard):
        consumers.register("g", session, SETTINGS, ALL)
        producers.register("p", session)
    clock.advance(120_000)
    assert not consumers.remove_silent()
    assert not producers.remove_silent()
    consumers.register("g", heard, SETTINGS, ALL)
    producers.register("p", heard)
    clock.advance(1)
    assert consumers.remove_silent() == {silent}
    assert producers.remove_silent() == {silent}
    assert consumers.list_client_ids("g") == ["2"]
    assert producers.find_session("p") is heard


def test_producers_take_turns() -> None:
    producers = ProducerManager(ManualClock())
    first, second = NotingSession("1"), NotingSession("2")
    producers.register("p", first)
    producers.register("p", second)
    assert [producers.find_session("p") for _ in range(3)] == [first, second, first]
    assert producers.find_client("2") is second
    assert producers.find_session("q") is None
    producers.remove_session(first)
    producers.unregister("p", second)
    assert producers.list_groups() == {}


def test_a_lock_is_one_clients_until_it_gives_it_up_or_its_lease_ends() -> None:
    clock = ManualClock()
    locks = RebalanceLocks(clock)
    first, second = QueueKey("T", 0), QueueKey("T", 1)
    assert locks.lock("g", [first, second], "1") == {first, second}
    assert locks.lock("g", [first, second], "2") == set()
    assert locks.lock("h", [first], "2") == {first}
    locks.unlock("g", [first], "2")
    assert locks.lock("g", [first], "2") == set()
    locks.unlock("g", [first], "1")
    assert locks.lock("g", [first, second], "2") == {first}
    clock.advance(59_999)
    assert locks.lock("g", [second], "2") == set()
    assert locks.lock("g", [second], "1") == {second}  # renewed
    clock.advance(59_999)
    assert locks.lock("g", [second], "2") == set()
    clock.advance(1)
    assert locks.lock("g", [second], "2") == {second}


def test_expired_locks_are_forgotten() -> None:
    clock = ManualClock()
    locks = RebalanceLocks(clock)
    locks.lock("g", [QueueKey("T", 0)], "1")
    assert locks.has_locks("g")
    assert not locks.has_locks("h")
    clock.advance(60_000)
    assert not locks.has_locks("g")
    locks.remove_expired()
    assert locks._groups == {}


def test_a_producer_that_goes_costs_as_much_as_it_has_groups() -> None:
    class Session(NotingSession):
        asked = 0

        def __hash__(self) -> int:
            self.asked += 1
            return id(self)

    producers = ProducerManager(ManualClock())
    for number in range(100):
        producers.register(f"g{number}", NotingSession(f"c{number}"))
    session = Session("c")
    producers.register("own", session)
    producers.register("g7", session)
    session.asked = 0
    producers.remove_session(session)
    assert session.asked < 20
    assert [found.client_id for found in producers.list_groups()["g7"]] == ["c7"]
    assert "own" not in producers.list_groups()
    producers.remove_session(session)


def test_s81_one_client_is_in_a_limited_number_of_producer_groups() -> None:
    producers = ProducerManager(ManualClock())
    session, other = NotingSession("1"), NotingSession("2")
    for number in range(MAX_SUBSCRIPTIONS):
        producers.register(f"p{number}", session)
    with pytest.raises(Invalid, match="at most 10000 groups and topics"):
        producers.register("more", session)
    assert producers.find_session("more") is None
    producers.register("p0", session)  # a later heartbeat
    producers.register("more", other)
    producers.unregister("p0", session)
    producers.register("more", session)
    with pytest.raises(Invalid, match="at most 255 characters, found 256"):
        producers.register("x" * 256, other)


def test_s81_the_subscriptions_of_one_client_are_limited_in_number_and_in_size() -> None:
    consumers = ConsumerManager(ManualClock())
    session = NotingSession("1")
    many = {f"T{number}": Subscription("T") for number in range(MAX_SUBSCRIPTIONS - 2)}
    assert consumers.register("g", session, SETTINGS, many)
    assert not consumers.register("g", session, SETTINGS, many)  # a later heartbeat
    assert consumers.register("h", session, SETTINGS, {})
    with pytest.raises(Invalid, match="at most 10000 groups and topics"):
        consumers.register("i", session, SETTINGS, {})
    assert consumers.find_group("i") is None
    consumers.unregister("g", session)
    long = {"T": Subscription("T", "x" * (MAX_CHARACTERS // 2))}
    assert consumers.register("i", session, SETTINGS, long)
    with pytest.raises(Invalid, match="characters"):
        consumers.register("j", session, SETTINGS, long)
    assert not consumers.register("i", session, SETTINGS, long)
    assert consumers.list_client_ids("i") == ["1"]


def test_s81_a_client_that_connects_anew_frees_the_place_of_the_former_one() -> None:
    consumers = ConsumerManager(ManualClock())
    old, new = NotingSession("1"), NotingSession("1")
    for number in range(MAX_SUBSCRIPTIONS // 2):
        consumers.register(f"g{number}", old, SETTINGS, ALL)
    consumers.register("g0", new, SETTINGS, ALL)
    consumers.register("more", old, SETTINGS, ALL)
    consumers.remove_session(old)
    consumers.remove_session(new)
    assert consumers.list_groups() == {}
    assert consumers._groups_of_session == {}


def test_s81_the_number_of_locks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_LOCKS == 500_000
    monkeypatch.setattr("tieredstore.broker.clients.consumers.MAX_LOCKS", 3)
    clock = ManualClock()
    locks = RebalanceLocks(clock)
    queues = [QueueKey("T", number) for number in range(4)]
    assert locks.lock("g", queues, "1") == set(queues[:3])
    assert locks.lock("h", queues[:1], "1") == set()
    assert locks._groups.keys() == {"g"}
    assert locks.lock("g", queues, "1") == set(queues[:3])  # renewed
    locks.unlock("g", queues[:1], "1")
    assert locks.lock("h", queues[:1], "1") == {queues[0]}
    clock.advance(60_000)
    assert locks.lock("g", queues[3:], "2") == set()
    locks.remove_expired()
    assert locks.lock("g", queues, "2") == set(queues[:3])
