"""The writer epoch: one holder, the highest number wins, a look at it counts for a lease."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import orjson
import pytest

from tests.kit.chunks import LEASE_MS, Store
from tieredstore.errors import Fenced, Invalid, Unavailable
from tieredstore.testing.object_faults import ObjectFault

FOLDER = "212d6b50_DefaultCluster/broker-a/.writer"


@pytest.fixture
def store() -> Store:
    return Store()


def epochs(store: Store) -> list[str]:
    """The names of the epoch objects, without their leading zeros."""
    keys = [info.key for info in store.first.list(f"{FOLDER}/")]
    return [key.rpartition("/")[2].lstrip("0") for key in keys]


def put_epoch(store: Store, number: int, **content: object) -> None:
    store.first.put_if_absent(f"{FOLDER}/{number:020d}", [orjson.dumps(content)], {})


def test_an_owner_names_host_process_and_time(store: Store) -> None:
    epoch = store.process().tier.acquire_writer("broker-a")
    host, pid, since_ms, _ = epoch.owner.rsplit(":", 3)
    assert (host, int(pid), int(since_ms)) == (
        socket.gethostname(),
        os.getpid(),
        store.clock.now_ms(),
    )


def test_w01_a_live_owner_is_named(store: Store) -> None:
    first = store.process("first").tier.acquire_writer("broker-a")
    with pytest.raises(Fenced, match="first"):
        store.process("second").tier.acquire_writer("broker-a")
    first.check()
    assert epochs(store) == ["1"]


def test_w01_taking_over_is_seen_within_a_lease(store: Store) -> None:
    first = store.process("first").tier.acquire_writer("broker-a")
    second = store.process("second").tier.acquire_writer("broker-a", take_over=True)
    assert (first.number, second.number) == (1, 2)
    first.check()
    store.clock.advance(LEASE_MS)
    with pytest.raises(Fenced, match="taken over by second as epoch 2"):
        first.check()
    with pytest.raises(Fenced):
        first.check()
    second.check()


def test_a_look_is_at_most_one_request_a_lease(store: Store) -> None:
    process = store.process()
    epoch = process.tier.acquire_writer("broker-a")
    process.operations()
    for _ in range(30):
        epoch.check()
        store.clock.advance(LEASE_MS // 10)
    assert process.operations() == ["LIST", "LIST"]


def test_w01_a_process_that_stands_still_over_its_look_looks_again(store: Store) -> None:
    process = store.process("first")
    epoch = process.tier.acquire_writer("broker-a")
    store.clock.advance(LEASE_MS)
    listed = process.client.reply

    def stop_once(operation: str, key: str) -> None:
        process.client.reply = listed  # type: ignore[method-assign]
        store.process("second").tier.acquire_writer("broker-a", take_over=True)
        store.clock.advance(10 * LEASE_MS)

    process.client.reply = stop_once  # type: ignore[method-assign]
    with pytest.raises(Fenced, match="second"):
        epoch.check()


def test_a_look_that_fails_is_no_answer(store: Store) -> None:
    process = store.process()
    epoch = process.tier.acquire_writer("broker-a")
    store.clock.advance(LEASE_MS)
    process.fail_next(ObjectFault.FAIL)
    with pytest.raises(Unavailable):
        epoch.check()
    epoch.check()


def test_a_released_epoch_makes_room_and_is_over(store: Store) -> None:
    epoch = store.process().tier.acquire_writer("broker-a")
    epoch.release()
    epoch.release()
    with pytest.raises(Fenced, match="released"):
        epoch.check()
    assert epochs(store) == ["1", "1.released"]
    assert store.process().tier.acquire_writer("broker-a").number == 2


@pytest.mark.parametrize("fault", [ObjectFault.LOSE_REPLY, ObjectFault.FAIL, ObjectFault.BUSY])
def test_o03_a_lost_reply_is_no_lost_epoch(store: Store, fault: ObjectFault) -> None:
    process = store.process(fencing=False)
    puts = [fault, None]
    process.client.fault_of = lambda operation, _: (
        puts.pop(0) if operation == "PUT" and puts else None
    )
    epoch = process.tier.acquire_writer("broker-a")
    assert epoch.number == 1
    epoch.check()
    puts[:] = [fault, None]
    epoch.release()
    assert epochs(store) == ["1", "1.released"]


def test_a_release_that_nobody_answers_is_not_tried_for_ever(store: Store) -> None:
    writer = store.process()
    epoch = writer.tier.acquire_writer("broker-a")

    def silence(operation: str, _: str) -> ObjectFault | None:
        store.clock.advance(LEASE_MS)
        return ObjectFault.FAIL if operation == "PUT" else None

    before = writer.client.count("PUT")
    writer.client.fault_of = silence
    with pytest.raises(Unavailable, match="is not released"):
        epoch.release()
    assert writer.client.count("PUT") == before + 1


class NotingLock:
    """Tells when somebody waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_waited_for = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_waited_for.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_who_waits_for_a_look_that_fails_does_not_look_in_turn(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = store.process()
    epoch = writer.tier.acquire_writer("broker-a")
    lock = NotingLock()
    monkeypatch.setattr(epoch, "_lock", lock)
    store.clock.advance(LEASE_MS)
    before = writer.client.count("LIST")
    with ThreadPoolExecutor(1) as pool:
        others: list[Future[None]] = []

        def fail(operation: str, _: str) -> ObjectFault | None:
            if operation != "LIST":
                return None
            others.append(pool.submit(epoch.check))
            assert lock.is_waited_for.wait(10)
            return ObjectFault.FAIL

        writer.client.fault_of = fail
        with pytest.raises(Unavailable):
            epoch.check()
        with pytest.raises(Unavailable, match="injected"):
            others[0].result()
    assert writer.client.count("LIST") == before + 1
    writer.client.fault_of = None
    epoch.check()


@pytest.mark.parametrize("operation", ["LIST", "DELETE"])
def test_old_epochs_that_cannot_be_deleted_do_not_cost_the_new_one(
    store: Store, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1, 21):
        put_epoch(store, number, owner="dead")
    writer = store.process(fencing=False)
    first = writer.client.count("LIST")
    writer.client.fault_of = lambda asked, _: (  # the third LIST looks for old ones
        ObjectFault.FAIL
        if asked == operation and (asked == "DELETE" or writer.client.count("LIST") == first + 3)
        else None
    )
    writer.tier.acquire_writer("broker-a", take_over=True).check()
    assert "old writer epochs stay for now" in caplog.text


def test_a_claim_that_cannot_be_looked_at_is_let_go(store: Store) -> None:
    writer = store.process(fencing=False)
    writer.fail_next(None, None, ObjectFault.FAIL)  # LIST, PUT, LIST
    with pytest.raises(Unavailable):
        writer.tier.acquire_writer("broker-a")
    assert epochs(store) == ["1", "1.released"]
    writer.tier.acquire_writer("broker-a").check()


def test_many_epochs_do_not_make_the_listing_longer(store: Store) -> None:
    for number in range(1, 60):
        epoch = store.process().tier.acquire_writer("broker-a")
        assert epoch.number == number
        epoch.release()
    assert len(epochs(store)) <= 2 * 18


def test_w01_an_epoch_that_was_forgotten_is_not_taken_again(store: Store) -> None:
    """Its number is free, but a look behind the create shows the ones that came after."""
    slow = store.process("slow", fencing=False)  # no probe before the create
    create = slow.client.request

    def others_first(operation: str, key: str) -> None:
        create(operation, key)
        if operation == "PUT":
            slow.client.request = create  # type: ignore[method-assign]
            for _ in range(40):
                store.process().tier.acquire_writer("broker-a", take_over=True).release()

    slow.client.request = others_first  # type: ignore[method-assign]
    assert slow.tier.acquire_writer("broker-a").number == 41


def test_a_newer_format_is_refused(store: Store) -> None:
    put_epoch(store, 1, format=2, owner="later")
    with pytest.raises(Invalid, match="format version 2"):
        store.process().tier.acquire_writer("broker-a", take_over=True)


def test_content_that_is_no_json_names_nobody(store: Store) -> None:
    store.first.put_if_absent(f"{FOLDER}/{1:020d}", [b"\xff"], {})
    with pytest.raises(Fenced, match="unknown"):
        store.process().tier.acquire_writer("broker-a")


needs_proc = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells whether a process is the same"
)


@needs_proc
def test_an_owner_that_surely_ended_is_no_obstacle(store: Store) -> None:
    script = (
        "from tieredstore.providers.chunks.epoch import _process; import os;"
        "print(os.getpid(), _process(os.getpid()))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    put_epoch(store, 1, format=1, owner="dead", pid=int(output[0]), process=output[1])
    assert store.process().tier.acquire_writer("broker-a").number == 2


@needs_proc
def test_an_owner_on_another_machine_may_be_alive(store: Store) -> None:
    put_epoch(store, 1, format=1, owner="remote", pid=1, process="other-boot:1:1:1")
    with pytest.raises(Fenced, match="remote"):
        store.process().tier.acquire_writer("broker-a")
