"""Faults of the local disk and of other processes, named by their ids in the fault catalogue."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import (
    FOREVER,
    copy_store,
    plain,
    put_all,
    running,
    small_config,
)
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.errors import Corrupt, Exhausted, Fenced, Invalid, Unavailable
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.read_only import open_read_only
from tieredstore.local.recovery.checkpoint import read_checkpoint

KEY = QueueKey("T", 0)


def _stopped_store(root: Path, count: int = 12) -> list[Any]:
    with running(small_config(root)) as store:
        return put_all(store, [plain(number=i) for i in range(count)])


def _patch(path: Path, position: int, change: Callable[[int], int]) -> None:
    data = bytearray(path.read_bytes())
    data[position] = change(data[position]) & 0xFF
    path.write_bytes(data)


def _log_file(root: Path, physical_offset: int) -> tuple[Path, int]:
    inside = physical_offset % 4096
    return root / "commitlog" / f"{physical_offset - inside:020d}", inside


def test_l02_a_torn_last_record_is_cut_off_at_every_byte(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    last = _stopped_store(whole)[-1]
    for kept in range(last.wrote_bytes):
        root = copy_store(whole, tmp_path / f"torn{kept}")
        path, inside = _log_file(root, last.physical_offset)
        data = bytearray(path.read_bytes())
        end = inside + last.wrote_bytes
        if not any(data[inside + kept : end]):
            continue  # the bytes that were lost are zeros
        data[inside + kept : end] = bytes(last.wrote_bytes - kept)
        path.write_bytes(data)
        reader = open_read_only(root)
        with pytest.raises(Corrupt):
            reader.get_message("g", "T", 0, 11, 1)
        with running(small_config(root)) as store:
            assert store.commit_log.max_offset == last.physical_offset, kept
            assert store.get_max_offset_in_queue("T", 0) == 11
            assert store.query_message("T", "k11", 9, *FOREVER) == []
            again = put_all(store, [plain(number=100)])[0]
            assert (again.queue_offset, again.physical_offset) == (11, last.physical_offset)
            found = store.get_message("g", "T", 0, 10, 9).messages
            assert [message.keys for message in found] == [["k10"], ["k100"]]


@pytest.mark.parametrize("lost_from", [0, 4])
def test_l02_torn_records_without_their_units_are_cut_off_too(
    tmp_path: Path, lost_from: int
) -> None:
    results = _stopped_store(tmp_path / "s")
    last, before = results[-1], results[-2]
    path, inside = _log_file(tmp_path / "s", last.physical_offset)
    data = bytearray(path.read_bytes())
    data[inside + lost_from : inside + last.wrote_bytes] = os.urandom(last.wrote_bytes - lost_from)
    path.write_bytes(data)
    queue = tmp_path / "s" / "consumequeue" / "T" / "0" / f"{200:020d}"
    units = bytearray(queue.read_bytes())
    units[20:40] = bytes(20)
    queue.write_bytes(units)
    with running(small_config(tmp_path / "s")) as store:
        assert store.commit_log.max_offset == before.physical_offset + before.wrote_bytes
        assert store.get_max_offset_in_queue("T", 0) == 11
    # The torn record is wiped: it can never become a message again.
    assert not any(path.read_bytes()[inside : inside + last.wrote_bytes])


def _break(root: Path, result: Any, position: int) -> None:
    path, inside = _log_file(root, result.physical_offset)
    _patch(path, inside + position, lambda byte: byte ^ 1)


def test_l02_damage_in_front_of_good_messages_is_not_cut_off(tmp_path: Path) -> None:
    """Recovery does not cut off valid messages that follow a damaged message. Java ends the log at
    the first bad record of its last file, and loses all later records."""
    root = tmp_path / "s"
    results = _stopped_store(root)
    _break(root, results[-3], 5)
    with running(small_config(root)) as store:
        assert store.commit_log.max_offset == results[-1].physical_offset + results[-1].wrote_bytes
        assert store.get_message("g", "T", 0, 10, 9).messages[0].keys == ["k10"]
        with pytest.raises(Corrupt):
            store.get_message("g", "T", 0, 9, 9)


def test_l02_damage_at_the_end_and_in_front_of_it_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "s"
    results = _stopped_store(root)
    _break(root, results[-3], 5)
    _break(root, results[-1], 90)
    before = {path: path.read_bytes() for path in (root / "commitlog").iterdir()}
    with pytest.raises(Corrupt, match=r"is damaged, but message 10 of T/0 .* is not"):
        DefaultMessageStore(small_config(root), ManualClock()).load()
    assert {path: path.read_bytes() for path in before} == before


RECORD_FIELDS = {
    "size": 1,
    "magic": 5,
    "body CRC": 9,
    "queue id": 15,
    "queue offset": 27,
    "physical offset": 35,
    "body length": 87,
    "body": 90,
    "topic length": 94,
    "topic": 95,
    "properties length": 97,
}


@pytest.mark.parametrize("field", RECORD_FIELDS)
@pytest.mark.parametrize("kind", ["owner", "reader"])
def test_l06_a_flip_in_a_record_is_never_served(tmp_path: Path, field: str, kind: str) -> None:
    root = tmp_path / "s"
    results = _stopped_store(root)
    path, inside = _log_file(root, results[4].physical_offset)
    _patch(path, inside + RECORD_FIELDS[field], lambda byte: byte ^ 0x04)
    if kind == "reader":
        reader = open_read_only(root)
        _check_damaged(reader)
        with pytest.raises(Corrupt):
            _check_pieces(reader)
    else:
        with running(small_config(root)) as store:
            _check_damaged(store)


def _check_damaged(store: Any) -> None:
    # The messages before the damage are served, then the damage is named, then reading continues.
    result = store.get_message("g", "T", 0, 0, 9)
    assert [message.queue_offset for message in result.messages] == [0, 1, 2, 3]
    assert result.next_begin_offset == 4
    with pytest.raises(Corrupt, match=r"message 4 of T/0") as caught:
        store.get_message("g", "T", 0, 4, 9)
    assert (caught.value.topic, caught.value.queue_id, caught.value.offset) == ("T", 0, 4)
    assert store.get_message("g", "T", 0, 5, 1).messages[0].keys == ["k5"]


def _check_pieces(reader: Any) -> None:
    """Check that an upload reads the records before and after the damage."""
    source = reader.dispatch_source
    for piece in source.read_records(source.read_units(KEY, 0, 9)):
        _check_piece(piece)


def _check_piece(piece: memoryview) -> None:
    from tests.kit.record_forms import record_positions
    from tieredstore.message.columns.records import check_bodies, record_columns

    columns = record_columns(piece, record_positions(piece))
    offsets = columns.queue_offsets.tolist()
    ok = (
        check_bodies(piece, columns).all()
        and offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        and set(columns.queue_ids.tolist()) == {0}
        and (columns.physical_offsets - columns.positions == columns.physical_offsets[0]).all()
        and all(
            bytes(piece[start : start + length]) == b"T"
            for start, length in zip(
                columns.topic_offsets.tolist(), columns.topic_lengths.tolist(), strict=True
            )
        )
    )
    if not ok:
        raise Corrupt("a record is not what it was")


@pytest.mark.parametrize("position", range(12))
def test_l06_a_flip_in_a_unit_is_never_served(tmp_path: Path, position: int) -> None:
    root = tmp_path / "s"
    _stopped_store(root)
    _patch(root / "consumequeue" / "T" / "0" / f"{0:020d}", 4 * 20 + position, lambda b: b ^ 0x02)
    store = open_read_only(root)
    result = store.get_message("g", "T", 0, 0, 9)
    assert [message.queue_offset for message in result.messages][:4] == [0, 1, 2, 3]
    if position >= 10:  # a size near the true one
        with pytest.raises(Corrupt):
            store.get_message("g", "T", 0, 4, 1)
        return
    # The unit is made from the log again.
    [after] = store.get_message("g", "T", 0, 4, 1).messages
    assert (after.queue_offset, after.keys) == (4, ["k4"])


def test_l06_a_flip_in_the_index_gives_no_wrong_message(tmp_path: Path) -> None:
    root = tmp_path / "s"
    _stopped_store(root, 4)
    (path,) = (root / "index").iterdir()
    whole = path.read_bytes()
    for position in range(40, len(whole)):
        _flip(path, whole, position)
        reader = open_read_only(root, small_config(root))
        for number in range(4):
            try:
                found = reader.query_message("T", f"k{number}", 9, *FOREVER)
            except (Corrupt, Invalid):
                continue
            assert [message.keys for message in found] in ([], [[f"k{number}"]])


@pytest.mark.parametrize("count", [4, 40])
def test_l06_a_flip_in_the_head_of_an_index_file_is_repaired_from_the_log(
    tmp_path: Path, count: int
) -> None:
    root = tmp_path / "s"
    _stopped_store(root, count)
    first = min((root / "index").iterdir())
    whole = {path: path.read_bytes() for path in (root / "index").iterdir()}
    for position in range(40):
        for path in (root / "index").iterdir():
            path.unlink()
        for path, data in whole.items():
            path.write_bytes(data)
        _flip(first, whole[first], position)
        with running(small_config(root)) as store:
            added = store.next_offset("T", 0)
            put_all(store, [plain(number=added)])
            for number in range(added + 1):
                found = store.query_message("T", f"k{number}", 9, *FOREVER)
                seen = [message.keys for message in found]
                # The times of a full file, and the place of the first message, are passed once.
                assert seen == [[f"k{number}"]] or (seen == [] and position < 24), position
        whole = {path: path.read_bytes() for path in (root / "index").iterdir()}


@pytest.mark.parametrize("position", [0, 5, 7, 8, 11])
@pytest.mark.parametrize("number", [0, 9, 10, 14, 19])
def test_l06_a_flip_in_a_unit_deletes_no_file_that_is_needed(
    tmp_path: Path, position: int, number: int
) -> None:
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        put_all(store, [plain(number=each) for each in range(35)])
        names = sorted(path.name for path in (root / "consumequeue" / "T" / "0").iterdir())
        path = root / "consumequeue" / "T" / "0" / names[number // 10]
        _patch(path, number % 10 * 20 + position, lambda byte: byte ^ 0x81)
        store._queues.delete_expired(1)
        left = sorted(path.name for path in (root / "consumequeue" / "T" / "0").iterdir())
        assert left == names


def _flip(path: Path, whole: bytes, position: int) -> None:
    data = bytearray(whole)
    data[position] ^= 0x11
    path.write_bytes(data)


def test_l06_a_bad_checkpoint_is_named(tmp_path: Path) -> None:
    root = tmp_path / "s"
    _stopped_store(root)
    (root / "checkpoint").write_bytes(b"\xff" * 4096)
    with pytest.raises(Corrupt, match="checkpoint: expected times from 0 on"):
        read_checkpoint(root)
    (root / "checkpoint").write_bytes(b"\0" * 10)
    with pytest.raises(Corrupt, match="checkpoint: expected 4096 bytes, found 10"):
        read_checkpoint(root)
    # It is rebuilt from the queues and the log.
    for _ in range(2):
        with running(small_config(root)) as store:
            assert store.get_max_offset_in_queue("T", 0) == 12
    assert read_checkpoint(root).physic_msg_timestamp_ms > 0


def test_l07_short_reads_and_writes_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread, pwrite = os.pread, os.pwrite
    monkeypatch.setattr(os, "pread", lambda fd, n, at: pread(fd, min(n, 7), at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:7], at))
    results = _stopped_store(tmp_path / "s")
    reader = open_read_only(tmp_path / "s")
    found = reader.get_message("g", "T", 0, 0, 32).messages
    assert [message.keys for message in found] == [[f"k{i}"] for i in range(10)]
    assert len(results) == 12
    assert len(reader.query_message("T", "k7", 9, *FOREVER)) == 1


def _is_flush(thread: threading.Thread) -> bool:
    """Return whether the current thread may flush the log. Only the test's own thread and the
    store's flush thread may."""
    return thread is threading.main_thread() or thread.name == "flush-commit-log"


def test_l04_a_failed_sync_is_never_taken_for_success_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    store = DefaultMessageStore(small_config(root), ManualClock())
    store.load()
    store.start()
    put_all(store, [plain(number=0)])
    before = (root / "checkpoint").exists()
    sync = os.fdatasync
    failures = [OSError(errno.EIO, os.strerror(errno.EIO))]

    def fail_once(fd: int) -> None:
        # Only a flush of the log: a thread that makes the next files or writes queues syncs, too.
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        if failures and "/commitlog/" in path and _is_flush(threading.current_thread()):
            raise failures.pop()
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", fail_once)
    with pytest.raises(Unavailable, match="Input/output error"):
        store.flush()
    assert not failures
    with pytest.raises(Unavailable, match="Input/output error"):
        store.flush()
    assert store.put_message(plain()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert store.put_messages([plain()]).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert len(store.get_message("g", "T", 0, 0, 9).messages) == 1
    with pytest.raises(Unavailable):
        store.shutdown()
    assert (root / "abort").exists()
    assert (root / "checkpoint").exists() == before
    # The lock is free again, and the next owner recovers the store.
    with running(small_config(root)) as store:
        assert store.get_max_offset_in_queue("T", 0) == 1


def test_l05_a_full_disk_refuses_puts_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=0)])

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            big = plain(number=1, body=b"x" * 3900)
            while store.put_message(big).ok:  # in files that were made before the disk was full
                pass
            acknowledged = store.next_offset("T", 0)
            for _ in range(2):
                result = store.put_message(big)
                assert result.status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
                assert "No space left" in result.reason
                assert store.put_messages([big]).status is result.status
        assert store.next_offset("T", 0) == acknowledged <= 3
        results = put_all(store, [big, plain(number=2)])
        assert [result.queue_offset for result in results] == [acknowledged, acknowledged + 1]
        count = acknowledged + 2
        assert store.get_max_offset_in_queue("T", 0) == count
    with running(small_config(tmp_path / "s")) as store:
        assert store.get_max_offset_in_queue("T", 0) == count


def test_l05_a_stop_without_space_for_the_queues_leaves_the_abort_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        put_all(store, [plain(number=0)])
        write = os.pwrite

        def full(fd: int, data: Any, at: int) -> int:
            if at > 0:  # the checkpoint is written at 0
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(fd, data, at)

        monkeypatch.setattr(os, "pwrite", full)
        assert store.put_message(plain(number=1)).ok
        with pytest.raises(Exhausted, match="cannot write"):
            store.wait_until_dispatched()
        assert store.put_message(plain(number=2)).ok
    assert (root / "abort").exists()


def test_l09_a_file_truncated_underneath_is_an_error_for_the_reader(public_a_copy: Path) -> None:
    reader = open_read_only(public_a_copy)
    assert reader.get_message("g", "pub_normal", 0, 0, 1).messages
    os.truncate(public_a_copy / "commitlog" / f"{0:020d}", 100)
    with pytest.raises(Corrupt, match="expected 644 bytes at 0, found 100"):
        reader.get_message("g", "pub_normal", 0, 0, 1)
    os.truncate(public_a_copy / "consumequeue" / "pub_multi" / "0" / f"{0:020d}", 30)
    with pytest.raises(Corrupt, match="pub_multi"):
        reader.get_message("g", "pub_multi", 0, 0, 4)
    newest = max((public_a_copy / "index").iterdir())
    os.truncate(newest, 60)
    with pytest.raises((Corrupt, Invalid), match=newest.name):
        reader.query_message("pub_normal", "pubn-K0", 9, *FOREVER)


HOLD = """
import sys
from pathlib import Path
from tieredstore.local.recovery.store_lock import StoreLock
lock = StoreLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
"""


def test_l10_a_store_that_another_process_holds_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "s"
    _stopped_store(root)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    before = sorted(path.name for path in root.iterdir())
    with pytest.raises(Fenced, match=f"in use by process {holder.pid}"):
        DefaultMessageStore(small_config(root)).load()
    assert sorted(path.name for path in root.iterdir()) == before
    reader = open_read_only(root)
    assert reader.is_live
    holder.communicate("\n", timeout=30)
    reader.refresh()
    assert not bool(reader.is_live)  # bool: for mypy a property that was true stays so
    with running(small_config(root)) as store:
        assert store.get_max_offset_in_queue("T", 0) == 12


def test_l10_a_store_is_opened_once_in_a_process(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        with pytest.raises(Fenced, match="this process"):
            DefaultMessageStore(small_config(root)).load()
        # A reader in the same process must not loosen the owner's lock.
        open_read_only(root).shutdown()
        holder = subprocess.run(
            [sys.executable, "-c", HOLD, str(root)],
            input="\n",
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Fenced" in holder.stderr
        assert store.put_message(plain()).ok


def test_l11_an_unclean_store_opens_by_itself(tmp_path: Path) -> None:
    root = tmp_path / "s"
    _stopped_store(root)
    (root / "abort").write_text("4711")
    with running(small_config(root)) as store:
        found = [store.get_message("g", "T", 0, offset, 9).messages for offset in (0, 10)]
        assert [message.keys for part in found for message in part] == [
            [f"k{number}"] for number in [*range(9), 10, 11]
        ]
    assert not (root / "abort").exists()


CRASH = """
import os, sys
from tests.kit.local_stores import plain, put_all, running, small_config
from pathlib import Path
with running(small_config(Path(sys.argv[1]))) as store:
    put_all(store, [plain(number=i) for i in range(40)])
    os.kill(os.getpid(), 9)
"""


def test_l11_a_killed_owner_leaves_abort_and_no_lock(tmp_path: Path) -> None:
    root = tmp_path / "s"
    killed = subprocess.run([sys.executable, "-c", CRASH, str(root)], check=False)
    assert killed.returncode == -9
    assert (root / "abort").read_text().isdigit()
    assert open_read_only(root).is_live
    with running(small_config(root)) as store:
        assert store.get_max_offset_in_queue("T", 0) == 40
        assert store.get_message("g", "T", 0, 39, 1).messages[0].keys == ["k39"]


def test_l10_a_read_only_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    root = tmp_path / "s"
    _stopped_store(root)
    open_file = os.open

    def read_only(path: Any, flags: int, *more: Any) -> int:
        if flags & (os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_file(path, flags, *more)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(Invalid, match=r"lock: cannot open .*Read-only file system"):
        DefaultMessageStore(small_config(root)).load()
    assert not (root / "abort").exists()
    assert open_read_only(root).get_max_offset_in_queue("T", 0) == 12
