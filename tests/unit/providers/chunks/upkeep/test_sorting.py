"""Tests of when group objects are sorted, including with short-lived processes."""

from __future__ import annotations

import pytest

from tests.kit.chunks import GRACE_MS, Store
from tests.kit.gathered import REGROUP_MS, Gathering, list_groups, read_queue
from tieredstore.contracts.objects import ClientLimits


@pytest.fixture
def store() -> Store:
    return Store()


def live(store: Store, **settings: int) -> None:
    """Run a process that commits once and stops."""
    writer = Gathering(store, **{"maintenance_threads": 1} | settings)
    writer.write("A", "B")
    writer.epoch.release()
    writer.process.tier.close()


def levels(store: Store) -> str:
    return "".join(name[0] for name in list_groups(store))


def assert_all(store: Store, count: int) -> None:
    for topic in "AB":
        expected = (topic.encode() + b"0123456789") * count, b"01" * count
        assert read_queue(store, topic) == expected


def test_lives_of_a_moment_sort_what_those_before_them_left(store: Store) -> None:
    for _ in range(12):
        live(store)
        store.clock.advance(8 * REGROUP_MS)
    assert levels(store).startswith("01")
    assert len(levels(store)) <= 8  # a day's
    assert_all(store, 12)


def test_lives_of_a_moment_move_what_is_old_and_leave_no_garbage(store: Store) -> None:
    for _ in range(8):
        live(store, split_age_ms=2 * REGROUP_MS)
        store.clock.advance(2 * REGROUP_MS)
    assert len(levels(store)) <= 3
    assert_all(store, 8)


def test_lives_that_follow_each_other_quickly_do_not_sort_each_time(store: Store) -> None:
    for _ in range(6):
        live(store)
        store.clock.advance(REGROUP_MS // 20)
    assert levels(store) == "000000"
    assert_all(store, 6)


def test_a_stop_has_no_time_to_sort_when_nobody_answers_in_time(store: Store) -> None:
    for _ in range(2):
        live(store)
        store.clock.advance(REGROUP_MS)
    live(store, close_timeout_ms=0)
    assert levels(store).count("0") == 3
    assert_all(store, 3)


def test_what_another_process_made_garbage_goes_the_first_time(store: Store) -> None:
    former = Gathering(store)
    former.write("A", "B")
    former.keep(store)
    assert levels(store) == "01"
    heir = Gathering(store)
    heir.keep(store)
    assert levels(store) == "1"
    assert_all(store, 1)


def test_what_this_process_made_garbage_waits_for_its_grace_time(store: Store) -> None:
    writer = Gathering(store)
    writer.write("A", "B")
    heir = Gathering(store)
    heir.keep(store)
    assert levels(store) == "01"
    heir.keep(store, GRACE_MS + REGROUP_MS)
    assert levels(store) == "1"
    assert_all(store, 1)


def test_where_nothing_is_created_conditionally_there_are_no_groups(store: Store) -> None:
    store.limits = ClientLimits(min_part_bytes=100, conditional=False)
    process = store.process(group_bytes=1_000, fencing=False)
    assert process.tier.capabilities.gathered_bytes == 0
