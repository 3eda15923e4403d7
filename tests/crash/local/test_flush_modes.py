"""What may be missing after a crash, by flush mode: the table of docs/local-store.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.kit.crash.recorder import Mark, Recording, record
from tests.kit.crash.states import Loss, crash_state
from tests.kit.local_stores import plain, running, small_config
from tieredstore.contracts.message_store import PutMessageStatus

CHILD = """
import os, sys
from pathlib import Path
from tests.kit.local_stores import plain, small_config
from tieredstore.local.message_store import DefaultMessageStore
store = DefaultMessageStore(small_config(Path(sys.argv[1]), flush_disk_type=sys.argv[2]))
store.load()
store.start()
for number in range(10**6):
    store.put_message(plain(number=number)).durable.result(60)
    os.write(1, b"%d\\n" % number)
"""
NEVER = 2**31 - 1
QUIET = {"flush_interval_commit_log_ms": NEVER, "flush_interval_consume_queue_ms": NEVER}


def _kill_at(root: Path, mode: str, count: int) -> int:
    """Kill a process that puts, at any moment after so many puts; how many it was told of."""
    command = [sys.executable, "-c", CHILD, str(root), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) >= count:
                break
        child.kill()
        told = [int(line) for line in child.stdout.read().split("\n")[:-1]]
        assert child.wait() == -9
    return max([count, *told]) + 1


def _bodies(root: Path, mode: str) -> list[bytes]:
    with running(small_config(root, flush_disk_type=mode)) as store:
        end = store.get_max_offset_in_queue("T", 0)
        found = [store.get_message("g", "T", 0, offset, 1) for offset in range(end)]
        return [bytes(message.body) for result in found for message in result.messages]


def _check_killed(root: Path, mode: str) -> None:
    told = _kill_at(root, mode, 60)
    found = _bodies(root, mode)
    assert len(found) in (told, told + 1)  # one more may be stored, which nobody was told of
    assert found == [b"body-%d" % number for number in range(len(found))]


def test_a_killed_process_loses_nothing_under_sync_flush(tmp_path: Path) -> None:
    _check_killed(tmp_path / "s", "SYNC_FLUSH")


def test_a_killed_process_loses_nothing_under_async_flush(tmp_path: Path) -> None:
    _check_killed(tmp_path / "s", "ASYNC_FLUSH")


def _record_puts(disk: Path, mode: str, flush_at: int | None = None) -> Recording:
    disk.mkdir()
    config = small_config(disk / "s", flush_disk_type=mode, **QUIET)
    with record(disk) as recorder, running(config) as store:
        for number in range(12):
            status = store.put_message(plain(number=number)).durable.result(60)
            assert status is PutMessageStatus.PUT_OK
            recorder.mark(("put", number + 1))
            if number + 1 == flush_at:
                store.flush()
                recorder.mark(("flushed", number + 1))
        recorder.mark("end")
    return recorder.recording


def _states_without_power(recording: Recording, target: Path) -> list[tuple[int, int, Path]]:
    """For each mark: puts that were told of, messages that were flushed, and what is left."""
    states = []
    for cut, operation in enumerate(recording.operations):
        if isinstance(operation, Mark):
            state = crash_state(recording, cut + 1, Loss.UNSYNCED)
            facts = {"put": 0, "flushed": 0}
            facts.update(dict(fact for fact in state.facts if isinstance(fact, tuple)))
            root = target / str(cut)
            root.mkdir(parents=True)
            state.write_to(root)
            states.append((facts["put"], facts["flushed"], root / "s"))
            if operation.fact == "end":
                break
    return states


def test_a_power_cut_loses_nothing_under_sync_flush(tmp_path: Path) -> None:
    recording = _record_puts(tmp_path / "disk", "SYNC_FLUSH")
    states = _states_without_power(recording, tmp_path / "after")
    assert len(states) == 13
    for told, _, root in states:
        assert _bodies(root, "SYNC_FLUSH") == [b"body-%d" % number for number in range(told)]


def test_a_power_cut_loses_what_was_not_flushed_under_async_flush(tmp_path: Path) -> None:
    recording = _record_puts(tmp_path / "disk", "ASYNC_FLUSH", flush_at=7)
    lost = 0
    for told, flushed, root in _states_without_power(recording, tmp_path / "after"):
        found = _bodies(root, "ASYNC_FLUSH")
        assert flushed <= len(found) <= told
        assert found == [b"body-%d" % number for number in range(len(found))]
        lost = max(lost, told - len(found))
    assert lost  # else nothing is tested
