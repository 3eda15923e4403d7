"""Tests of writers that continue without an operator: after a restart with the same state
directory, or after watching an unchanged epoch for long enough."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson
import pytest

from tests.kit.chunks import Process, Store
from tests.kit.memory_chunks import chunk_provider
from tests.kit.object_faults import FaultyObjectClient, ObjectFault
from tieredstore.errors import Fenced, Unavailable
from tieredstore.providers.chunks.epochs import renewal
from tieredstore.providers.chunks.epochs.epoch import ChunkWriterEpoch
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.testing.faults import SimulatedCrash
from tieredstore.tier.state_files import RECORD_FILE, StateLock, StateRecord

AFTER_MS = 60_000


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that simulates a reboot, after which earlier processes cannot be found."""
    starts = itertools.count(1)

    def start() -> None:
        boot = f"boot-{next(starts)}"
        monkeypatch.setattr(renewal, "_find_space", lambda: boot)

    start()
    return start


class Node:
    """A state directory and the processes that lock it one after another."""

    def __init__(self, store: Store, state: Path) -> None:
        self.store = store
        self.state = state

    def start(self, **settings: object) -> ChunkWriterEpoch:
        """Start a process, acquire the epoch, and release the lock as if the process had ended."""
        lock = StateLock(self.state)
        lock.acquire()
        try:
            process = Process(self.store, None, dict(settings))
            return process.tier.acquire_writer("broker-a", record=StateRecord(self.state, lock))
        finally:
            lock.release()


@pytest.fixture
def node(store: Store, tmp_path: Path) -> Node:
    return Node(store, tmp_path / "node")


@pytest.fixture
def other(store: Store, tmp_path: Path) -> Node:
    return Node(store, tmp_path / "other")


def test_w06_a_node_whose_machine_restarted_goes_on_by_itself(
    node: Node, machine: Callable[[], None]
) -> None:
    first = node.start()
    for number in range(2, 100):
        machine()
        assert node.start().number == number
    assert len(orjson.loads((node.state / RECORD_FILE).read_bytes())["claims"]) <= 64
    node.store.clock.advance(60_000)
    with pytest.raises(Fenced, match="taken over"):
        first.confirm()


def test_w06_another_node_needs_permission(
    node: Node, other: Node, machine: Callable[[], None]
) -> None:
    first = node.start()
    machine()
    with pytest.raises(Fenced, match=rf"{first.owner}.*tieredStoreChunkTakeOverEpoch=1"):
        other.start()
    with pytest.raises(Fenced):
        other.start(take_over_epoch=2)
    assert other.start(take_over_epoch=1).number == 2
    with pytest.raises(Fenced, match="TakeOverEpoch=2"):
        node.start(take_over_epoch=1)
    machine()
    assert other.start(take_over_epoch=1).number == 3


def test_w06_a_copied_directory_needs_permission(
    node: Node, other: Node, machine: Callable[[], None]
) -> None:
    node.start()
    shutil.copytree(node.state, other.state)
    machine()
    with pytest.raises(Fenced):
        other.start()
    assert node.start().number == 2


def test_w06_a_cloned_machine_is_behind_once_the_other_has_gone_on(
    node: Node, machine: Callable[[], None]
) -> None:
    """A cloned machine is fenced once the original has acquired another epoch."""
    node.start()
    record = (node.state / RECORD_FILE).read_bytes()
    machine()
    node.start()
    (node.state / RECORD_FILE).write_bytes(record)
    machine()
    with pytest.raises(Fenced, match="TakeOverEpoch=2"):
        node.start()


def test_w06_a_lost_record_needs_permission(node: Node, machine: Callable[[], None]) -> None:
    node.start()
    (node.state / RECORD_FILE).unlink()
    machine()
    with pytest.raises(Fenced):
        node.start()


class World:
    """A tier whose epoch 1 belongs to a node that crashes while acquiring epoch 2."""

    def __init__(self, root: Path) -> None:
        self.state = root
        self.client = MemoryObjectClient()
        self.acquire(self.client)

    def acquire(self, client: MemoryObjectClient) -> ChunkWriterEpoch:
        lock = StateLock(self.state)
        lock.acquire()
        try:
            tier = chunk_provider(client, fencing=False)
            return tier.acquire_writer("broker-a", record=StateRecord(self.state, lock))
        finally:
            lock.release()


@pytest.mark.parametrize("fault", [ObjectFault.CRASH_BEFORE, ObjectFault.CRASH_AFTER])
def test_w06_a_crash_at_each_request_of_a_start_is_followed_by_a_start(
    tmp_path: Path, machine: Callable[[], None], fault: ObjectFault
) -> None:
    """After a crash at any request of a start, the next start succeeds."""
    for number in itertools.count(1):
        world = World(tmp_path / str(number))
        machine()
        client = FaultyObjectClient({number: fault}, beside=world.client)
        try:
            world.acquire(client)
        except SimulatedCrash:
            machine()
            assert world.acquire(world.client).number in {2, 3}
        else:
            assert number > 3
            break


def test_w06_a_crash_at_the_record_is_followed_by_a_start(
    tmp_path: Path, machine: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash_before(record: StateRecord, claims: object) -> None:
        raise SimulatedCrash

    def crash_after(record: StateRecord, claims: list[str]) -> None:
        save(record, claims)
        raise SimulatedCrash

    save = StateRecord.save
    for number, crash in enumerate((crash_before, crash_after)):
        world = World(tmp_path / str(number))
        machine()
        with monkeypatch.context() as patch:
            patch.setattr(StateRecord, "save", crash)
            with pytest.raises(SimulatedCrash):
                world.acquire(world.client)
        machine()
        assert world.acquire(world.client).number == 2


def test_w06_a_claim_is_recorded_before_it_is_made(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    [epoch] = [info.key for info in world.client.list("") if "/.writer/" in info.key]
    token = orjson.loads(world.client.get_range(epoch, 0, 4096) or b"")["token"]
    assert orjson.loads((world.state / RECORD_FILE).read_bytes())["claims"] == [f"1:{token}"]
    client = FaultyObjectClient(beside=world.client)
    client.fault_of = lambda operation, _: ObjectFault.FAIL if operation == "PUT" else None
    with pytest.raises(Unavailable):
        world.acquire(client)
    claims = orjson.loads((world.state / RECORD_FILE).read_bytes())["claims"]
    assert [claim.partition(":")[0] for claim in claims] == ["1", "2"]


def test_w06_a_claim_that_arrives_after_its_process_ended_is_the_node_s_own(
    tmp_path: Path, machine: Callable[[], None]
) -> None:
    """A claim that is applied after its process has ended belongs to the next process with the same
    state directory."""
    world = World(tmp_path / "state")
    machine()
    late: list[tuple[str, list[bytes]]] = []
    first = FaultyObjectClient(beside=world.client)
    send = first.put_if_absent

    def hold(key: str, buffers: list[bytes], metadata: dict[str, str]) -> bool:
        late.append((key, buffers))
        raise SimulatedCrash

    first.put_if_absent = hold  # type: ignore[assignment,method-assign]
    with pytest.raises(SimulatedCrash):
        world.acquire(first)
    machine()
    second = FaultyObjectClient(beside=world.client)

    def overtake(key: str, buffers: list[bytes], metadata: dict[str, str]) -> bool:
        if late:
            assert send(*late.pop(), {})
        return FaultyObjectClient.put_if_absent(second, key, buffers, metadata)

    second.put_if_absent = overtake  # type: ignore[assignment,method-assign]
    assert world.acquire(second).number == 3


# Signs of life


def sign(epoch: ChunkWriterEpoch) -> None:
    epoch._renewal.renew()


def signs(store: Store) -> list[str]:
    return [info.key.rpartition("/")[2] for info in store.first.list("") if ".renewed." in info.key]


def watcher(store: Store, actions: Mapping[int, Callable[[], object]]) -> Process:
    """Return a process that may take over if the epoch's owner shows no activity for AFTER_MS.
    `actions[n]` is called before the process's n-th LIST. It starts watching with the second
    LIST."""
    process = Process(store, None, {"take_over_after_ms": AFTER_MS, "fencing": False})
    looks = itertools.count(1)
    send = process.client.request

    def request(operation: str, key: str) -> None:
        if operation == "LIST":
            actions.get(next(looks), lambda: None)()
        send(operation, key)

    process.client.request = request  # type: ignore[method-assign]
    return process


def test_w06_an_epoch_that_nobody_renewed_is_taken_over_where_that_is_allowed(
    node: Node, other: Node, machine: Callable[[], None]
) -> None:
    sign(node.start(take_over_after_ms=AFTER_MS))
    machine()
    with pytest.raises(Fenced):
        other.start()
    begin_ms = node.store.clock.monotonic_ms()
    assert other.start(take_over_after_ms=AFTER_MS).number == 2
    assert node.store.clock.monotonic_ms() - begin_ms >= AFTER_MS


def test_w09_an_epoch_that_is_renewed_is_not_taken_over(
    store: Store, node: Node, machine: Callable[[], None]
) -> None:
    owner = node.start(take_over_after_ms=AFTER_MS)
    machine()
    for look in (3, 4, 5, 6):  # all that follow the first one of the watch
        process = watcher(store, {look: lambda: sign(owner)})
        with pytest.raises(Fenced, match=owner.owner):
            process.tier.acquire_writer("broker-a")
    assert len(signs(store)) == 1


def test_w09_an_owner_that_gives_no_signs_is_not_taken_over_by_time(
    node: Node, other: Node, machine: Callable[[], None]
) -> None:
    node.start()
    machine()
    before_ms = node.store.clock.monotonic_ms()
    with pytest.raises(Fenced):
        other.start(take_over_after_ms=AFTER_MS)
    assert node.store.clock.monotonic_ms() == before_ms


def test_the_slower_of_two_nodes_says_how_long_is_waited(
    node: Node, other: Node, machine: Callable[[], None]
) -> None:
    sign(node.start(take_over_after_ms=10 * AFTER_MS))
    machine()
    begin_ms = node.store.clock.monotonic_ms()
    other.start(take_over_after_ms=AFTER_MS)
    assert node.store.clock.monotonic_ms() - begin_ms >= 10 * AFTER_MS


def test_a_machine_that_stood_still_has_not_watched(
    store: Store, node: Node, machine: Callable[[], None]
) -> None:
    """Time during which a machine was suspended does not count as time without a heartbeat."""
    owner = node.start(take_over_after_ms=AFTER_MS)
    sign(owner)
    machine()
    sleep = {3: lambda: store.clock.advance(3_600_000), 5: lambda: sign(owner)}
    process = watcher(store, sleep)
    with pytest.raises(Fenced, match=owner.owner):
        process.tier.acquire_writer("broker-a")


def test_an_epoch_that_is_released_while_it_is_watched_is_free(
    store: Store, node: Node, machine: Callable[[], None]
) -> None:
    owner = node.start(take_over_after_ms=AFTER_MS)
    sign(owner)
    machine()
    process = watcher(store, {4: owner.release})
    assert process.tier.acquire_writer("broker-a").number == 2


def test_signs_of_life_leave_nothing_behind(store: Store, node: Node) -> None:
    epoch = node.start(take_over_after_ms=AFTER_MS)
    for _ in range(5):
        sign(epoch)
        assert len(signs(store)) == 1
    epoch.release()
    assert signs(store) == []
    sign(epoch)
    assert signs(store) == []
    crashed = node.start(take_over_after_ms=AFTER_MS)
    sign(crashed)
    assert len(signs(store)) == 1
    node.start()
    assert signs(store) == []


def test_without_the_key_nobody_pays_for_signs_of_life(store: Store) -> None:
    process = store.process(maintenance_threads=1)
    epoch = process.tier.acquire_writer("broker-a")
    assert epoch._renewal._thread is None
    process.tier.close()
