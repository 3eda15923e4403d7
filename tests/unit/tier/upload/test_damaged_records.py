"""Damaged records in the local store are skipped, counted and reported. The queue continues."""

from __future__ import annotations

import logging

import pytest

from tests.kit.tier.flat import KEY, T0, ListSource, Tier, bodies, config, existing
from tieredstore.contracts.dispatch_source import QueueKey, QueueRange
from tieredstore.errors import Corrupt
from tieredstore.metrics import Metrics
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload import local_records, queue_upload
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus
from tieredstore.tier.upload.queue_upload import DAMAGED_METRIC

OTHER = QueueKey("TopicB", 0)


class World:
    def __init__(self, **settings: object) -> None:
        self.tier = Tier(settings=settings)
        self.source = ListSource()
        self.metrics = Metrics()
        self.restart()

    def restart(self) -> None:
        settings = config(**self.tier.settings)
        self.store = self.tier.store()
        self.dispatcher = MessageStoreDispatcher(
            settings,
            self.source,
            self.store,
            None,
            TopicFilter(settings),
            self.tier.clock,
            self.metrics,
        )

    def damage(self, *offsets: int) -> None:
        self.source.bad |= {(KEY, offset) for offset in offsets}

    def scan(self, *, force: bool = True) -> DispatchOutcome:
        [outcome] = [o for o in self.dispatcher.scan(force) if o.key == KEY]
        return outcome

    @property
    def offsets(self) -> list[int]:
        return [offset for offset, _ in bodies(existing(self.store, KEY))]

    @property
    def counted(self) -> float:
        return self.metrics.value(DAMAGED_METRIC, topic=KEY.topic, queue_id=KEY.queue_id) or 0


def left_out(outcome: DispatchOutcome) -> list[tuple[int, int]]:
    return [(one.first_offset, one.until_offset) for one in outcome.left_out]


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("bad", [[0], [13], [18], [0, 1, 2], [5, 6, 12], [3, 5, 7, 9]])
@pytest.mark.parametrize("batch", [1, 4, 4096])
def test_l06_a_damaged_local_record_costs_itself_and_not_its_queue(
    bad: list[int], batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(group_commit_count=batch)
    world.source.put(KEY, 0, 20)
    world.damage(*bad)
    with caplog.at_level(logging.ERROR):
        outcome = world.scan()
    good = [offset for offset in range(20) if offset not in bad]
    assert (outcome.status, outcome.error) == (DispatchStatus.UPLOADED, None)
    assert (outcome.messages, world.offsets) == (len(good), good)
    assert [offset for run in left_out(outcome) for offset in range(*run)] == bad
    assert world.counted == len(bad)
    assert f"bad record at queue offset {bad[0]}" in str(outcome.left_out[0].error)
    told = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert len(told) == len(outcome.left_out)  # once for each run of them
    world.source.put(KEY, 20, 1)
    world.restart()
    assert world.scan().left_out == []
    assert world.offsets == [*good, 20]


def test_l06_messages_that_wait_for_others_are_not_held_by_a_damaged_one(world: World) -> None:
    world.tier.clock.set(T0)
    world.source.put(KEY, 0, 3)
    world.damage(0)
    outcome = world.scan(force=False)
    assert (left_out(outcome), outcome.status) == ([(0, 1)], DispatchStatus.HELD)
    assert world.dispatcher.failing_queues == {}


def test_behind_the_last_good_record_the_queue_waits_for_a_good_one(world: World) -> None:
    """A queue skips damaged records only once a good record follows, because the end of the log may
    be incomplete."""
    world.source.put(KEY, 0, 5)
    world.damage(3, 4)
    for _ in range(2):
        outcome = world.scan()
        assert isinstance(outcome.error, Corrupt)
        assert outcome.error.offset == 3
        assert world.offsets == [0, 1, 2]
    assert (world.counted, list(existing(world.store, KEY).holes)) == (0, [])
    assert "queue offset 3" in world.dispatcher.failing_queues[KEY]
    world.source.put(KEY, 5, 1)
    assert left_out(world.scan()) == [(3, 5)]
    assert world.offsets == [0, 1, 2, 5]


def test_what_was_put_in_order_meanwhile_is_uploaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_upload, "SEARCHED_MESSAGES", 4)
    world.source.put(KEY, 0, 20)
    world.damage(*range(2, 15))
    for _ in range(3):  # 4 further ones at each visit
        assert isinstance(world.scan().error, Corrupt)
    world.source.bad -= {(KEY, 5), (KEY, 6)}
    assert left_out(world.scan()) == [(2, 5), (7, 15)]
    assert world.offsets == [0, 1, 5, 6, *range(15, 20)]


def test_a_long_run_of_damage_is_searched_a_part_at_a_visit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_upload, "SEARCHED_MESSAGES", 10)
    monkeypatch.setattr(local_records, "SEARCHED_AT_ONCE", 3)
    world.source.put(KEY, 0, 50)
    world.damage(*range(4, 40))
    visits = 1
    while world.scan().error is not None:
        visits += 1
        assert visits < 10
    assert visits == 4  # 5 to 14, 15 to 24, 25 to 34, 35 to 44
    assert world.offsets == [*range(4), *range(40, 50)]


def test_a_message_that_retention_deletes_meanwhile_is_not_damaged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.source.put(KEY, 0, 10)
    world.damage(4)
    queue_range = world.source.queue_range

    def cleaned(key: QueueKey) -> QueueRange | None:
        """Clean the store after the upload round has checked its range."""
        if any(read[1] == 4 for read in world.source.reads):
            world.source.clean(key, 6)
        return queue_range(key)

    monkeypatch.setattr(world.source, "queue_range", cleaned)
    assert isinstance(world.scan().error, Corrupt)
    outcome = world.scan()
    assert (outcome.hole, outcome.left_out) == ((4, 6), [])
    assert world.offsets == [0, 1, 2, 3, 6, 7, 8, 9]
    assert world.counted == 0


def test_l06_damage_to_a_record_that_is_in_the_tier_does_not_stop_its_queue(world: World) -> None:
    world.source.put(KEY, 0, 5)
    world.scan()
    world.damage(4)
    world.source.put(KEY, 5, 2)
    world.restart()
    outcome = world.scan()
    assert (outcome.error, outcome.left_out) == (None, [])
    assert world.offsets == list(range(7))


def test_damage_is_told_of_all_visits_of_a_scan(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.tier.upload.dispatcher.ROUND_BYTES", 1)
    world = World(group_commit_count=2)
    world.source.put(KEY, 0, 12)
    world.damage(3, 8)
    assert left_out(world.scan()) == [(3, 4), (8, 9)]
    assert world.offsets == [0, 1, 2, 4, 5, 6, 7, 9, 10, 11]
