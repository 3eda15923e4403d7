"""Tests of the engine with failures of the object store and with fenced writers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import KEY, bodies, existing
from tests.kit.tier.hostile import SIZE, Fate, HostileClient, World, body_of
from tieredstore.contracts.segment import Buffer
from tieredstore.errors import Corrupt, Fenced, Unavailable
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.scan.findings import Finding
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.verify.verification import verify
from tieredstore.tier.upload.outcome import DispatchOutcome, DispatchStatus

BOTH = pytest.mark.parametrize("is_paired", [True, False], ids=["one write", "two writes"])


@pytest.fixture
def is_paired() -> bool:
    return True


@pytest.fixture
def world(is_paired: bool) -> World:
    """A broker with two messages in the tier and three to upload, with one request for messages and
    units, or one request per file."""
    world = World(is_paired=is_paired)
    world.put(2)
    world.start()
    world.scan()
    world.put(3)
    return world


def check_all(world: World) -> None:
    wanted = [(offset, body_of(offset)) for offset in range(world.count)]
    assert bodies(existing(world.store)) == wanted
    world.start()
    assert bodies(existing(world.store)) == wanted


def one(outcomes: list[DispatchOutcome]) -> DispatchOutcome:
    [outcome] = outcomes
    return outcome


@BOTH
@pytest.mark.parametrize("fate", [Fate.BUSY, Fate.DOWN])
@pytest.mark.parametrize("before", range(2))
def test_o01_an_outage_fails_a_visit_and_the_next_one_goes_on(
    world: World, fate: Fate, before: int
) -> None:
    world.client.fates = [Fate.WELL] * before + [fate] * 8
    outcome = one(world.scan())
    assert outcome.status is DispatchStatus.FAILED
    assert isinstance(outcome.error, Unavailable)
    assert existing(world.store).lock.acquire(blocking=False)
    existing(world.store).lock.release()
    world.client.fates = []
    outcome = one(world.scan())
    assert outcome.error is None
    check_all(world)


@BOTH
@pytest.mark.parametrize("fate", [Fate.LOST, Fate.LATE, Fate.CRASH_AFTER])
@pytest.mark.parametrize("before", range(2))
def test_o03_a_lost_reply_is_no_second_message_and_no_lost_one(
    world: World, fate: Fate, before: int
) -> None:
    world.client.fates = [Fate.WELL] * before + [fate]
    world.try_scan()
    for _ in range(2):
        world.try_scan()
    world.client.land(1 << 60)
    check_all(world)
    sizes = {item.id.type: item.size_bytes for item in world.chunks.list()}
    assert list(sizes.values()) == [5 * SIZE, 5 * 20]


@pytest.mark.parametrize(("before", "is_paired"), [(0, True), (0, False), (1, False)])
def test_w02_a_late_write_of_an_old_writer_with_our_bytes_is_adopted(
    world: World, before: int
) -> None:
    world.client.fates = [Fate.WELL] * before + [Fate.ZOMBIE_SAME]
    assert one(world.scan()).messages == 3
    file = existing(world.store)
    assert [len(file.commit_log.segments), len(file.consume_queue.segments)] == [1, 1]
    check_all(world)


@pytest.mark.parametrize(
    ("before", "is_paired", "kinds"),
    [
        pytest.param(0, False, {"commit_log"}, id="the commit log's"),
        pytest.param(1, False, {"consume_queue"}, id="the consume queue's"),
        pytest.param(0, True, {"commit_log", "consume_queue"}, id="of both"),
    ],
)
def test_w02_a_late_write_of_an_old_writer_ends_the_segment_where_ours_goes_on(
    world: World, before: int, kinds: set[str]
) -> None:
    world.client.fates = [Fate.WELL] * before + [Fate.ZOMBIE_OTHER]
    if len(kinds) == 2:
        world.try_scan()  # the outcome is not known
    assert one(world.scan()).messages == 3
    for kind in kinds:
        flat = getattr(existing(world.store), kind)
        bases = [segment.base_offset for segment in flat.segments]
        assert bases == [0, 2 * (SIZE if kind == "commit_log" else 20)]
    check_all(world)
    provider = world.provider()
    catalogue = load_catalogue(provider)
    findings: list[Finding] = []
    report = verify(provider, catalogue, findings.append)
    assert (report.messages, report.damage) == (5, 0)
    assert [finding.kind for finding in findings] == ["segment-overlap"] * len(kinds)
    sealed = [item.id.base_offset for item in provider.list() if item.sealed]
    assert sealed == [0] * len(kinds)


@BOTH
def test_w02_a_segment_that_only_an_old_writer_wrote_to_is_made_again(is_paired: bool) -> None:
    world = World(is_paired=is_paired)
    world.put(3)
    world.start()
    world.client.fates = [Fate.ZOMBIE_OTHER, Fate.WELL, Fate.WELL]
    world.scan()
    world.scan()
    check_all(world)


def test_w02_a_sealed_last_segment_stops_no_queue(world: World) -> None:
    """A queue continues if its last segment was sealed and the next one was never created."""
    for segment in existing(world.store).commit_log.segments:
        segment.file.seal()
    world.start()
    assert one(world.scan()).messages == 3
    check_all(world)


def test_w01_a_writer_that_was_replaced_stops_and_names_the_one_that_has_the_right(
    world: World,
) -> None:
    other = chunk_provider(world.client, owner="the new writer")
    other.acquire_writer("broker-a", take_over=True)
    list(other.list("broker-a"))
    assert world.dispatcher is not None
    with pytest.raises(Fenced, match="the new writer"):
        world.dispatcher.scan(force=True)
    assert world.dispatcher.dispatch(KEY, force=True).status is DispatchStatus.STOPPED
    assert [item.size_bytes for item in other.list()] == [2 * SIZE, 2 * 20]


@BOTH
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_w03_a_late_write_to_a_deleted_topic_is_not_in_the_new_one_of_its_name(
    world: World, count: int
) -> None:
    world.client.fates = [Fate.LATE, Fate.LATE, Fate.DOWN, Fate.DOWN, Fate.DOWN]
    world.try_scan()
    world.client.fates = []
    late, world.client.flying = world.client.flying, []
    assert late
    world.store.destroy_topics(["TopicA"])
    world.source.tables.clear()
    world.source.minimum.clear()
    wanted: list[tuple[int, bytes]] = []

    def put(number: int) -> None:
        for _ in range(number):
            body = f"of the new one, {len(wanted)}".encode().ljust(20)
            world.source.put(KEY, len(wanted), body=body)
            wanted.append((len(wanted), body))

    put(count)
    world.scan()
    world.client.flying = late
    world.client.land(1 << 60)
    for _ in range(3):
        put(2)
        world.try_scan()
        world.try_scan()
    assert bodies(existing(world.store)) == wanted
    world.start()
    assert bodies(existing(world.store)) == wanted


class SwitchingClient(HostileClient):
    """Calls `switch` before or after the n-th request that writes data."""

    def arm(self, number: int, switch: Callable[[], None], *, before: bool) -> None:
        self.number, self.switch, self.before = number, switch, before

    number = 0

    def put_if_absent(
        self, key: str, buffers: Sequence[Buffer], metadata: Mapping[str, str]
    ) -> bool:
        is_data = "/.writer/" not in key
        self.number -= is_data
        is_moment = is_data and self.number == 0
        if is_moment and self.before:
            self.switch()
        made = super().put_if_absent(key, buffers, metadata)
        if is_moment and not self.before:
            self.switch()
        return made


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("number", "is_paired"),
    [*((number, True) for number in range(1, 8)), *((number, False) for number in range(1, 13))],
)
def test_w02_a_writer_that_is_replaced_in_the_middle_of_an_upload_leaves_no_hole_and_no_double(
    number: int, is_paired: bool, before: bool
) -> None:
    """A queue has no hole and no duplicate after another writer takes over during an upload."""
    old = World(is_paired=is_paired)
    client = old.client = SwitchingClient(old.clock)
    old.put(9)
    old.start()
    new = World(is_paired=is_paired)
    new.client, new.clock, new.source = client, old.clock, old.source
    new.count = old.count

    def switch() -> None:
        new.metadata = copy.deepcopy(old.metadata)
        new.start()
        new.scan()

    client.arm(number, switch, before=before)
    with pytest.raises(Fenced, match=r"holds position|was taken over"):
        old.scan()
    old.clock.advance(20_000)
    assert old.dispatcher is not None
    with pytest.raises(Fenced):
        old.dispatcher.scan(force=True)
    for _ in range(2):
        new.put(3)
        old.count = new.count
        assert [outcome.error for outcome in new.scan() if outcome.error] == []
    check_all(new)
    provider = new.provider()
    findings: list[Finding] = []
    report = verify(provider, load_catalogue(provider), findings.append)
    assert (report.messages, report.damage) == (15, 0), findings


# Objects that are lost

LOST = pytest.mark.parametrize(
    ("file_type", "is_paired"),
    [
        pytest.param("COMMIT_LOG", False, id="of the commit log"),
        pytest.param("CONSUME_QUEUE", False, id="of the consume queue"),
        pytest.param("COMMIT_LOG", True, id="of both"),
    ],
)


def lose_object(world: World, file_type: str, number: int) -> None:
    """Delete the object of one commit without the engine's knowledge."""
    keys = [info.key for info in world.client.list("") if f"/{file_type}/" in info.key]
    MemoryObjectClient.delete(world.client, [sorted(keys)[number]])


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2])
@LOST
def test_o09_a_lost_object_costs_its_messages_and_not_the_uploads_behind_it(
    file_type: str, is_paired: bool, number: int, is_restarted: bool
) -> None:
    """A lost object affects only its own messages. Later uploads continue."""
    world = World(is_paired=is_paired)
    world.start()
    for _ in range(3):
        world.put(1)
        world.scan()
    lose_object(world, file_type, number)
    if is_restarted:
        world.start()
    else:
        world.clock.advance(600_000)  # observations of that age are repeated
    for _ in range(3):
        world.put(1)
        outcome = one(world.scan())
        assert (outcome.status, outcome.error) == (DispatchStatus.UPLOADED, None)
    for _ in range(2):
        file = existing(world.store)
        assert file.consume_queue_commit_offset == 6
        found = dict(bodies(file, 3))
        assert found == {offset: body_of(offset) for offset in (3, 4, 5)}
        world.start()
    assert world.store.broken_queues == {}


@LOST
@pytest.mark.parametrize("number", [0, 1])
def test_o09_a_lost_object_does_not_keep_later_keys_from_the_index(
    file_type: str, is_paired: bool, number: int
) -> None:
    """Later keys are indexed even if an object with earlier ones is lost."""
    world = World(is_paired=is_paired)
    world.start()
    for _ in range(3):
        world.put(1)
        world.scan()
    lose_object(world, file_type, number)
    world.index.marks = dict.fromkeys(world.index.marks, 0)  # a crash before the first checkpoint
    world.start()
    for _ in range(2):
        world.put(1)
        assert one(world.scan()).error is None
    last = existing(world.store).commit_log_commit_offset
    assert list(world.index.marks.values()) == [last]


@LOST
def test_o09_a_lost_object_is_told_by_whoever_reads_it(file_type: str, is_paired: bool) -> None:
    world = World(is_paired=is_paired)
    world.start()
    for _ in range(3):
        world.put(1)
        world.scan()
    lose_object(world, file_type, 1)
    world.start()
    world.put(1)
    world.scan()
    with pytest.raises(Corrupt, match="in no object"):
        bodies(existing(world.store))
    provider = world.provider()
    damage: list[Finding] = []
    verify(provider, load_catalogue(provider), damage.append)
    assert any("in no object" in finding.message for finding in damage), damage
