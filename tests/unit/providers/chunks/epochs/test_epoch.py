"""Tests of the writer epoch: it has one owner, and the highest number wins."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from tests.kit.chunks import Store
from tests.kit.object_faults import ObjectFault
from tests.kit.paths import ROOT
from tieredstore.contracts.objects import ObjectInfo
from tieredstore.errors import Fenced, Invalid, Unavailable
from tieredstore.providers.chunks.epochs import renewal
from tieredstore.timestamps import format_time

FOLDER = "212d6b50_DefaultCluster/broker-a/.writer"


@pytest.fixture
def store() -> Store:
    return Store()


def epochs(store: Store) -> list[str]:
    """Return the names of the epoch objects, without leading zeros."""
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


def test_the_last_writer_is_described_with_its_time(store: Store) -> None:
    tier = store.process("first").tier
    tier.acquire_writer("broker-a")
    described = f"first since {format_time(store.clock.now_ms())}"
    assert tier.find_last_writer("broker-a") == described
    put_epoch(store, 2, owner="other")
    assert tier.find_last_writer("broker-a") == "other since an unknown time"


def test_w01_a_live_owner_is_named(store: Store) -> None:
    first = store.process("first").tier.acquire_writer("broker-a")
    with pytest.raises(Fenced, match="first"):
        store.process("second").tier.acquire_writer("broker-a")
    first.check()
    assert epochs(store) == ["1"]


def test_w01_taking_over_is_seen_by_the_next_look(store: Store) -> None:
    first = store.process("first").tier.acquire_writer("broker-a")
    second = store.process("second").tier.acquire_writer("broker-a", take_over=True)
    assert (first.number, second.number) == (1, 2)
    first.check()
    with pytest.raises(Fenced, match="taken over by second as epoch 2"):
        first.confirm()
    with pytest.raises(Fenced):
        first.check()
    second.check()


def test_a_check_asks_nobody_and_a_look_is_one_request(store: Store) -> None:
    process = store.process()
    epoch = process.tier.acquire_writer("broker-a")
    process.operations()
    for _ in range(30):
        epoch.check()
        store.clock.advance(60_000)
    assert process.operations() == []
    epoch.confirm()
    assert process.operations() == ["HEAD"]


def test_a_look_that_fails_is_no_answer(store: Store) -> None:
    process = store.process()
    epoch = process.tier.acquire_writer("broker-a")
    process.fail_next(ObjectFault.FAIL)
    with pytest.raises(Unavailable):
        epoch.confirm()
    epoch.check()
    epoch.confirm()


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
        store.clock.advance(10_000)
        return ObjectFault.FAIL if operation == "PUT" else None

    before = writer.client.count("PUT")
    writer.client.fault_of = silence
    with pytest.raises(Unavailable, match="is not released"):
        epoch.release()
    assert writer.client.count("PUT") == before + 1


@pytest.mark.parametrize("operation", ["LIST", "DELETE"])
def test_old_markers_that_cannot_be_deleted_do_not_cost_the_new_one(
    store: Store, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        store.process().tier.acquire_writer("broker-a").release()
    store.first.put_if_absent(f"{FOLDER}/{1:020d}.released", [], {})
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


def test_epochs_stay_for_ever_and_their_markers_do_not(store: Store) -> None:
    """Epoch objects are never deleted, because every former owner looks for the next epoch."""
    for number in range(1, 60):
        epoch = store.process().tier.acquire_writer("broker-a")
        assert epoch.number == number
        epoch.release()
    names = epochs(store)
    assert [name for name in names if name.isdecimal()] == [str(n) for n in range(1, 60)]
    assert len(names) <= 59 + 18


def test_w01_an_epoch_that_was_forgotten_is_not_taken_again(store: Store) -> None:
    """A writer that recreates a deleted epoch object does not own the epoch. Its fence check finds
    the later epochs."""
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


@pytest.mark.parametrize("version", [1, 4])
def test_another_format_is_refused_in_one_line(store: Store, version: int) -> None:
    put_epoch(store, 1, format=version, owner="other")
    expected = f"format version {version}, this program reads 2 and 3"
    with pytest.raises(Invalid, match=expected) as caught:
        store.process().tier.acquire_writer("broker-a", take_over=True)
    assert "\n" not in str(caught.value)


def test_content_that_is_no_json_names_nobody(store: Store) -> None:
    store.first.put_if_absent(f"{FOLDER}/{1:020d}", [b"\xff"], {})
    with pytest.raises(Fenced, match="unknown"):
        store.process().tier.acquire_writer("broker-a")


DESCRIBE = (
    "from tieredstore.providers.chunks.epochs.renewal import describe_process;"
    "import orjson, sys;"
    "sys.stdout.buffer.write(orjson.dumps(describe_process()) + b'\\n'); sys.stdout.flush();"
    "sys.stdin.read()"
)


@contextmanager
def another_process() -> Iterator[dict[str, object]]:
    """Run another process during the `with` block. Yield the identity that it prints."""
    with subprocess.Popen(
        [sys.executable, "-c", DESCRIBE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        found: dict[str, object] = orjson.loads(process.stdout.readline())
        try:
            yield found
        finally:
            process.kill()


needs_proc = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are identified on Linux only"
)


@needs_proc
def test_an_owner_that_surely_ended_is_no_obstacle(store: Store) -> None:
    with another_process() as found:
        put_epoch(store, 1, format=2, owner="dead", **found)
        with pytest.raises(Fenced, match="dead"):
            store.process().tier.acquire_writer("broker-a")
    assert store.process().tier.acquire_writer("broker-a").number == 2


@needs_proc
def test_an_owner_whose_number_another_process_has_ended(store: Store) -> None:
    with another_process() as found:
        start = str(found["process"]).rpartition(":")[0]
        put_epoch(store, 1, format=2, owner="dead", pid=found["pid"], process=f"{start}:1")
        assert store.process().tier.acquire_writer("broker-a").number == 2


@needs_proc
def test_an_owner_that_nobody_has_waited_for_has_ended(store: Store) -> None:
    process = subprocess.Popen([sys.executable, "-c", DESCRIBE], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    found = orjson.loads(process.stdout.readline())
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    put_epoch(store, 1, format=2, owner="dead", **found)
    assert store.process().tier.acquire_writer("broker-a").number == 2
    process.communicate()


@needs_proc
def test_w09_an_owner_that_is_hidden_is_not_taken_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that is hidden in /proc by `hidepid` is assumed to be alive, and is not fenced."""
    with another_process() as found:
        read_text = Path.read_text

        def hide(path: Path, *args: str) -> str:
            if str(path) == f"/proc/{found['pid']}/stat":
                raise FileNotFoundError(2, "hidden", str(path))
            return read_text(path, *args)

        monkeypatch.setattr(Path, "read_text", hide)
        put_epoch(store, 1, format=2, owner="hidden", **found)
        with pytest.raises(Fenced, match="hidden"):
            store.process().tier.acquire_writer("broker-a")
    assert store.process().tier.acquire_writer("broker-a").number == 2


@needs_proc
@pytest.mark.parametrize("seen", ["1", ""])
def test_w09_where_proc_is_not_this_space_s_nobody_has_ended(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    """Every owner is assumed to be alive if /proc is missing or shows another PID namespace."""
    with another_process() as found:
        put_epoch(store, 1, format=2, owner="elsewhere", **found)
    if seen:
        (tmp_path / "self").symlink_to(seen)
    monkeypatch.setattr(renewal, "_PROC", tmp_path)
    with pytest.raises(Fenced, match="elsewhere"):
        store.process().tier.acquire_writer("broker-a")


@needs_proc
def test_an_owner_on_another_machine_may_be_alive(store: Store) -> None:
    put_epoch(store, 1, format=2, owner="remote", pid=1, process="other-boot:1:1:1")
    with pytest.raises(Fenced, match="remote"):
        store.process().tier.acquire_writer("broker-a")


class Record:
    """Record of a state directory that claimed the given epochs."""

    mark = None

    def __init__(self, *claims: str) -> None:
        self.claims = list(claims)

    def load(self) -> list[str]:
        return self.claims

    def save(self, claims: Sequence[str]) -> None:
        self.claims = list(claims)


class TestManyStarts:
    """A start needs no more LIST requests for many epochs than for few. It uses the record in its
    state directory."""

    def start(self, store: Store, record: Record, times: int) -> list[int]:
        """Start and stop `times` times. Return the number of epoch keys listed by each start."""
        shown = []
        for _ in range(times):
            process = store.process()
            listed = process.client.list
            count = 0

            def list_counted(prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
                nonlocal count
                for info in listed(prefix, start_after):  # noqa: B023 - used in this turn only
                    count += "/.writer/" in prefix
                    yield info

            process.client.list = list_counted  # type: ignore[method-assign]
            process.tier.acquire_writer("broker-a", record=record).release()
            shown.append(count)
        return shown

    def test_a_start_with_a_record_is_shown_the_last_epochs(self, store: Store) -> None:
        shown = self.start(store, Record(), 150)
        assert len([name for name in epochs(store) if "." not in name]) == 150
        assert max(shown) == shown[100] == shown[149] < 100

    def test_a_record_of_another_tier_is_no_harm(self, store: Store) -> None:
        put_epoch(store, 1, format=2, owner="x")
        store.first.put_if_absent(f"{FOLDER}/{1:020d}.released", [], {})
        epoch = store.process().tier.acquire_writer("broker-a", record=Record("500:abc"))
        assert epoch.number == 2

    def test_an_epoch_that_others_took_since_is_seen(self, store: Store) -> None:
        record = Record()
        self.start(store, record, 3)
        other = store.process("other").tier.acquire_writer("broker-a")
        with pytest.raises(Fenced, match="other"):
            store.process().tier.acquire_writer("broker-a", record=record)
        other.release()
        assert store.process().tier.acquire_writer("broker-a", record=record).number == 5
