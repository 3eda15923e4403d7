"""Data that a crash may lose in each flush mode. The modes are those of the table in
docs/local-store.md."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.crash.recorder import Mark, Recording, record
from tests.kit.crash.states import Loss, crash_state
from tests.kit.local_stores import plain, running, small_config
from tieredstore.contracts.durability import PutMessageStatus

CHILD = """
import json, os, sys
from pathlib import Path
from tests.kit.local_stores import plain, small_config
from tieredstore.local.message_store import DefaultMessageStore
store = DefaultMessageStore(small_config(Path(sys.argv[1]), **json.loads(sys.argv[2])))
store.load()
store.start()
for number in range(10**6):
    store.put_message(plain(number=number)).durable.result(60)
    if number + 1 == int(sys.argv[3]):
        store._commit.commit()
    os.write(1, b"%d\\n" % number)
"""
NEVER = 2**31 - 1
QUIET = {"flush_interval_commit_log_ms": NEVER, "flush_interval_consume_queue_ms": NEVER}
POOL = {
    "transient_store_pool_enable": True,
    "commit_interval_commit_log_ms": NEVER,
    "wake_commit_when_put_message": False,
    "mapped_file_size_commit_log_bytes": 1 << 20,  # so that no buffer is full before the kill
    **QUIET,
}
BOTH = pytest.mark.parametrize("pool", [{}, POOL], ids=["plain", "pool"])


def _kill_at(root: Path, settings: dict[str, Any], count: int, commit_at: int = 0) -> int:
    """Kill a process at a random moment after a given number of puts. Return the number of
    acknowledged puts. After `commit_at` puts, the data in the buffer pool is committed."""
    command = [sys.executable, "-c", CHILD, str(root), json.dumps(settings), str(commit_at)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= count:
                break
        child.kill()
        told = [int(line) for line in child.stdout.read().split("\n")[:-1]]
        assert child.wait() == -9
    return max([count, *told]) + 1


def _bodies(root: Path, settings: dict[str, Any]) -> list[bytes]:
    with running(small_config(root, **settings)) as store:
        end = store.get_max_offset_in_queue("T", 0)
        found = [store.get_message("g", "T", 0, offset, 1) for offset in range(end)]
        return [bytes(message.body) for result in found for message in result.messages]


def _first_bodies(count: int) -> list[bytes]:
    return [b"body-%d" % number for number in range(count)]


def _check_killed(root: Path, settings: dict[str, Any]) -> None:
    told = _kill_at(root, settings, 60)
    found = _bodies(root, settings)
    assert len(found) in (told, told + 1)  # one more may be stored without acknowledgement
    assert found == _first_bodies(len(found))


@BOTH
def test_a_killed_process_loses_nothing_under_sync_flush(
    tmp_path: Path, pool: dict[str, Any]
) -> None:
    _check_killed(tmp_path / "s", {"flush_disk_type": "SYNC_FLUSH", **pool})


def test_a_killed_process_loses_nothing_under_async_flush(tmp_path: Path) -> None:
    _check_killed(tmp_path / "s", {"flush_disk_type": "ASYNC_FLUSH"})


def test_a_killed_process_loses_what_was_not_committed_of_the_pool(tmp_path: Path) -> None:
    told = _kill_at(tmp_path / "s", POOL, 60, commit_at=40)
    assert told > 40
    assert _bodies(tmp_path / "s", POOL) == _first_bodies(40)


def _record_puts(
    disk: Path, settings: dict[str, Any], flush_at: int = 0, commit_at: Sequence[int] = ()
) -> Recording:
    """Record 12 puts. The log is flushed after `flush_at` puts, and committed after each number of
    puts in `commit_at`."""
    disk.mkdir()
    config = small_config(disk / "s", **{**QUIET, **settings})
    with record(disk) as recorder, running(config) as store:
        for number in range(12):
            status = store.put_message(plain(number=number)).durable.result(60)
            assert status is PutMessageStatus.PUT_OK
            recorder.mark(("put", number + 1))
            if number + 1 in commit_at:
                assert store._commit is not None
                store._commit.commit()
                recorder.mark(("committed", number + 1))
            if number + 1 == flush_at:
                store.flush()
                recorder.mark(("flushed", number + 1))
        recorder.mark("end")
    return recorder.recording


def _list_states(
    recording: Recording, target: Path, loss: Loss
) -> list[tuple[dict[str, int], Path]]:
    """Return the states of the store after a crash at each recorded fact. A state consists of the
    numbers of messages that were put, committed and flushed before the crash, and a folder with the
    files that remain."""
    states = []
    for cut, operation in enumerate(recording.operations):
        if isinstance(operation, Mark):
            state = crash_state(recording, cut + 1, loss)
            facts = {"put": 0, "committed": 0, "flushed": 0}
            facts.update(dict(fact for fact in state.facts if isinstance(fact, tuple)))
            root = target / str(cut)
            root.mkdir(parents=True)
            state.write_to(root)
            states.append((facts, root / "s"))
            if operation.fact == "end":
                break
    return states


@BOTH
def test_a_power_cut_loses_nothing_under_sync_flush(tmp_path: Path, pool: dict[str, Any]) -> None:
    settings = {"flush_disk_type": "SYNC_FLUSH", **pool}
    recording = _record_puts(tmp_path / "disk", settings)
    states = _list_states(recording, tmp_path / "after", Loss.UNSYNCED)
    assert len(states) == 13
    for done, root in states:
        assert _bodies(root, settings) == _first_bodies(done["put"])


def test_a_power_cut_loses_what_was_not_flushed_under_async_flush(tmp_path: Path) -> None:
    recording = _record_puts(tmp_path / "disk", {}, flush_at=7)
    lost = 0
    for done, root in _list_states(recording, tmp_path / "after", Loss.UNSYNCED):
        found = _bodies(root, {})
        assert done["flushed"] <= len(found) <= done["put"]
        assert found == _first_bodies(len(found))
        lost = max(lost, done["put"] - len(found))
    assert lost  # else nothing is tested


def test_a_power_cut_loses_what_was_not_flushed_of_the_pool(tmp_path: Path) -> None:
    """A power cut loses only those messages of the buffer pool that were not flushed. A kill at the
    same point keeps all committed messages."""
    recording = _record_puts(tmp_path / "disk", POOL, flush_at=7, commit_at=(3, 10))
    lost = 0
    for done, root in _list_states(recording, tmp_path / "cut", Loss.UNSYNCED):
        found = _bodies(root, POOL)
        assert found == _first_bodies(done["flushed"])
        lost = max(lost, done["committed"] - len(found))
    assert lost
    for done, root in _list_states(recording, tmp_path / "killed", Loss.NOTHING):
        kept = max(done["committed"], done["flushed"])
        assert _bodies(root, POOL) == _first_bodies(kept)
