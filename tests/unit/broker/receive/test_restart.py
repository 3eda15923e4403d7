"""Delivery and acknowledgement state survives restarts, kills and disk failures."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.receiving import Receiving, bodies, drive
from tieredstore.broker.receive.events import MAGIC, Event
from tieredstore.broker.receive.journal import JournalCalls
from tieredstore.broker.receive.progress import QueueProgress
from tieredstore.broker.receive.requests import AckStatus
from tieredstore.broker.receive.state import FROM_LAST, FROM_WHERE
from tieredstore.errors import Invalid, TieredStoreError, Unavailable

OK, INVALID = AckStatus.OK, AckStatus.INVALID_RECEIPT_HANDLE


class FailingJournal(JournalCalls):
    """Journal with planned failures. A call raises `error`, or writes only half of its bytes."""

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}
        self.is_short = False
        self.syncs = 0

    def _check(self, name: str) -> None:
        if name in self.errors:
            raise OSError(self.errors[name], os.strerror(self.errors[name]))

    def write(self, fd: int, data: bytes) -> int:
        if self.is_short:
            return super().write(fd, data[: len(data) // 2])
        self._check("write")
        return super().write(fd, data)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._check("truncate")
        super().truncate(fd, size_bytes)

    def sync(self, fd: int) -> None:
        self.syncs += 1
        self._check("sync")
        super().sync(fd)


def files(on: Receiving, suffix: str) -> list[Path]:
    return sorted((on.folder / "receive").glob(f"*{suffix}"))


@pytest.mark.parametrize("is_killed", [False, True])
def test_l11_what_is_acknowledged_or_invisible_is_so_after_a_restart(
    tmp_path: Path, is_killed: bool
) -> None:
    async def test(on: Receiving) -> None:
        on.put(5)
        received = await on.receive(max_count=4)
        await on.service.ack_all("G", "T", [received[0].handle, received[2].handle])
        changed = await on.service.change_invisible("G", "T", received[3].handle, 5_000)
        assert changed
        for _ in range(2):  # what the journal says, and what a snapshot says
            if is_killed:
                await on.kill()
            else:
                await on.service.stop()
            await on.start()
        assert on.offset() == 1
        assert await on.service.ack("G", "T", received[3].handle) is INVALID
        assert bodies(await on.receive()) == [4]
        on.clock.advance(5_000)
        again = await on.receive()
        assert [(*bodies([one]), one.delivery_attempt) for one in again] == [(3, 2)]
        assert await on.service.ack("G", "T", changed) is INVALID
        assert await on.service.ack("G", "T", received[1].handle) is OK
        assert on.offset() == 3

    drive(tmp_path, test)


def test_message_groups_wait_after_a_restart_as_before(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        for name in "aab":
            on.put(message_group=name)
        (first,) = await on.receive(max_count=1, fifo=True)
        assert bodies(await on.receive(fifo=True)) == [2]
        for _ in range(2):
            await on.kill()
            await on.start()
            assert await on.receive(fifo=True) == []
        await on.service.ack("G", "T", first.handle)
        assert bodies(await on.receive(fifo=True)) == [1]

    drive(tmp_path, test)


def test_a_clock_that_is_set_back_brings_no_handle_back(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(1)
        handles = set()
        for _ in range(3):
            received = await on.receive()
            handles.add(received[0].handle)
            on.service.give_back("G", "T", received)
            for _ in range(2):
                await on.kill()
                await on.start()
            on.clock.set(on.clock.now_ms() - 3_600_000)
        assert len(handles) == 3

    drive(tmp_path, test)


def test_where_a_new_group_began_is_kept(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(3)
        assert await on.receive() == []
        on.put(2)
        await on.kill()
        await on.start()
        assert bodies(await on.receive()) == [3, 4]

    drive(tmp_path, test, attributes={FROM_WHERE: FROM_LAST})


def test_a_consumer_offset_of_before_a_kill_does_not_bring_messages_back(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(4)
        received = await on.receive()
        await on.service.ack("G", "T", received[0].handle)
        await on.offsets.persist()
        await on.service.ack_all("G", "T", [one.handle for one in received[1:]])
        await on.kill()
        await on.offsets.load()
        assert on.offset() == 1
        await on.start()
        assert on.offset() == 4
        assert await on.receive() == []

    drive(tmp_path, test)


def test_a_consumer_offset_that_went_on_without_the_service_is_followed(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(4)
        await on.receive(max_count=2)
        await on.kill()
        on.offsets.commit_offset("G", "T", 0, 3)
        await on.start()
        assert bodies(await on.receive()) == [3]

    drive(tmp_path, test)


def test_messages_that_the_store_lost_are_not_taken_for_done(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(4)
        received = await on.receive()
        await on.service.ack_all("G", "T", [one.handle for one in received])
        await on.kill()
        on.store.delete_topics({"T"})
        await on.start()
        on.put(2)
        assert bodies(await on.receive()) == [4, 5]

    drive(tmp_path, test)


def test_l02_a_torn_tail_is_cut_at_every_byte(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(2)
        received = await on.receive()
        (path,) = files(on, ".journal")
        size = path.stat().st_size
        await on.service.ack("G", "T", received[0].handle)
        whole = path.read_bytes()
        snapshot = files(on, ".snapshot")[0].read_bytes()
        for end in range(size, len(whole) + 1):
            await on.kill()
            for old in (on.folder / "receive").iterdir():
                old.unlink()
            path.write_bytes(whole[:end])
            path.with_suffix(".snapshot").write_bytes(snapshot)
            await on.start()
            expected = 1 if end == len(whole) else 0
            assert on.offset() == expected
            assert await on.receive() == []
            # A part of a frame is kept for people, zeros are not.
            has_part = end < len(whole) and whole[size:end].strip(b"\0") != b""
            assert (files(on, ".damaged") != []) == has_part

    drive(tmp_path, test)


def test_l06_a_flip_anywhere_loses_no_message(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(6)
        received = await on.receive(max_count=4)
        await on.service.ack_all("G", "T", [received[0].handle, received[1].handle])
        await on.service.stop()
        await on.start()
        await on.service.ack("G", "T", received[3].handle)
        await on.receive(max_count=1)
        await on.kill()
        await on.offsets.persist()
        good = {path: path.read_bytes() for path in (on.folder / "receive").iterdir()}
        for path, data in good.items():
            for position in range(0, len(data), 7):
                if data[:8] == MAGIC and position == 7:
                    continue  # the version, see below
                for old in (on.folder / "receive").iterdir():
                    old.unlink()
                for name, content in good.items():
                    name.write_bytes(content)
                path.write_bytes(
                    data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]
                )
                on.offsets.commit_offset("G", "T", 0, 0)
                await on.start()
                on.clock.advance(30_000)
                # Message 2 was never acknowledged, 5 never given out.
                assert {2, 5} <= set(bodies(await on.receive()))
                await on.kill()
        await on.start()

    drive(tmp_path, test)


def test_w05_a_newer_format_is_refused(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        await on.kill()
        (path,) = files(on, ".journal")
        good = path.read_bytes()
        path.write_bytes(MAGIC[:-1] + b"\x03" + good[8:])
        with pytest.raises(Invalid, match="expected format version 2, found 3"):
            await on.start()
        path.write_bytes(good)
        await on.start()

    drive(tmp_path, test)


def test_the_journal_stays_small_and_says_the_same(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(400)
        kept = await on.receive(max_count=1)
        for _ in range(100):
            received = await on.receive(max_count=4)
            await on.service.ack_all("G", "T", [one.handle for one in received])
            await on.service._keep_up()
        assert sum(path.stat().st_size for path in files(on, "")) < 4_096
        assert len(files(on, ".journal")) == len(files(on, ".snapshot")) == 1
        assert int(files(on, ".journal")[0].stem) > 5
        await on.kill()
        await on.start()
        assert await on.receive() == []
        assert await on.service.ack("G", "T", kept[0].handle) is OK
        assert on.offset() == 400

    drive(tmp_path, test, max_bytes=1_000)


@pytest.mark.parametrize("number", range(3))
def test_l01_a_kill_within_a_rotation_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """No state is lost if a rotation of the journal fails and the process is then killed."""

    async def test(on: Receiving) -> None:
        on.put(4)
        received = await on.receive()
        await on.service.ack("G", "T", received[0].handle)
        name = ("replace_file", "replace_file", "unlink")[number]

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "stop")

        monkeypatch.setattr(f"tieredstore.disk.file_operations.FileOperations.{name}", fail)
        with pytest.raises(Unavailable, match="cannot write: Input"):
            await on.state.rotate()
        await on.service.ack("G", "T", received[1].handle)
        if number == 1:  # and it fails again
            with pytest.raises(Unavailable, match="Input"):
                await on.state.rotate()
            await on.service.ack("G", "T", received[3].handle)
        await on.kill()
        monkeypatch.undo()
        await on.start()
        assert on.offset() == 2
        assert await on.receive() == []
        on.clock.advance(30_000)
        assert bodies(await on.receive()) == ([2] if number == 1 else [2, 3])

    drive(tmp_path, test)


def test_p01_other_tasks_run_during_a_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.broker.turns.TURN_S", 0)
    turn = 0
    turns: set[int] = set()
    take_snapshot = QueueProgress.snapshot

    def note_turn(progress: QueueProgress) -> Iterator[Event]:
        turns.add(turn)
        return take_snapshot(progress)

    async def test(on: Receiving) -> None:
        nonlocal turn
        assert await on.receive() == []
        monkeypatch.setattr(QueueProgress, "snapshot", note_turn)
        rotation = asyncio.create_task(on.state.rotate())
        while not rotation.done():
            turn += 1
            await asyncio.sleep(0)
        assert len(turns) > 30

    drive(tmp_path, test, queues=64)


@pytest.mark.parametrize("seed", range(4))
def test_l11_what_changes_during_a_rotation_is_so_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("tieredstore.broker.turns.TURN_S", 0)
    choose = random.Random(seed)

    async def test(on: Receiving) -> None:
        for queue_id in range(16):
            on.put(4, queue_id)
        held = await on.receive(attempt_id="before")
        done: set[int] = set()
        rotation = asyncio.create_task(on.state.rotate())
        while not rotation.done():
            if choose.random() < 0.5:
                held += await on.receive(max_count=1, attempt_id=f"{choose.random()}")
            elif held:
                one = held.pop(choose.randrange(len(held)))
                assert await on.service.ack("G", "T", one.handle) is OK
                done.add(*bodies([one]))
            for _ in range(choose.randrange(8)):
                await asyncio.sleep(0)
        assert done
        await on.kill()
        await on.start()
        assert [await on.service.ack("G", "T", one.handle) for one in held] == [OK] * len(held)
        done.update(bodies(held))
        rest = await on.receive(max_count=64)
        assert set(bodies(rest)) == set(range(64)) - done

    drive(tmp_path, test, queues=16)


def test_l05_a_full_disk_refuses_and_all_goes_on_when_there_is_room(tmp_path: Path) -> None:
    calls = FailingJournal()

    async def test(on: Receiving) -> None:
        on.put(4)
        received = await on.receive(max_count=2)
        for fault in ("full", "short"):
            calls.is_short = fault == "short"
            calls.errors = {"write": errno.ENOSPC}
            with pytest.raises(TieredStoreError, match="append"):
                await on.service.ack("G", "T", received[0].handle)
            with pytest.raises(TieredStoreError, match="append"):
                await on.receive()
        calls.errors, calls.is_short = {}, False
        assert on.offset() == 0
        assert await on.service.ack("G", "T", received[0].handle) is OK
        assert bodies(await on.receive()) == [2, 3]
        await on.kill()
        await on.start()
        assert on.offset() == 1
        assert files(on, ".damaged") == []

    drive(tmp_path, test, calls=calls)


def test_what_was_half_written_and_cannot_be_cut_off_is_left_behind(tmp_path: Path) -> None:
    calls = FailingJournal()

    async def test(on: Receiving) -> None:
        on.put(2)
        received = await on.receive()
        calls.is_short = True
        calls.errors = {"truncate": errno.EIO}
        with pytest.raises(TieredStoreError):
            await on.service.ack("G", "T", received[0].handle)
        calls.is_short, calls.errors = False, {}
        with pytest.raises(Unavailable, match="a new one is to be begun"):
            await on.service.ack("G", "T", received[0].handle)
        await on.service._keep_up()
        assert await on.service.ack("G", "T", received[0].handle) is OK
        await on.kill()
        await on.start()
        assert on.offset() == 1

    drive(tmp_path, test, calls=calls)


def test_l04_a_failed_sync_is_no_success_until_a_new_snapshot(tmp_path: Path) -> None:
    calls = FailingJournal()

    async def test(on: Receiving) -> None:
        on.put(2)
        received = await on.receive()
        calls.errors = {"sync": errno.EIO}
        with pytest.raises(Unavailable, match="sync"):
            await on.service.ack("G", "T", received[0].handle)
        calls.errors = {}
        with pytest.raises(Unavailable, match="a new one is to be begun"):
            await on.service.ack("G", "T", received[1].handle)
        await on.service._keep_up()
        assert await on.service.ack("G", "T", received[1].handle) is OK
        assert on.offset() == 2

    drive(tmp_path, test, calls=calls, is_synced=True)


def test_acknowledgements_at_once_share_a_sync(tmp_path: Path) -> None:
    calls = FailingJournal()

    async def test(on: Receiving) -> None:
        on.put(32)
        received = await on.receive()
        before = calls.syncs
        acks = [on.service.ack("G", "T", one.handle) for one in received]
        assert set(await asyncio.gather(*acks)) == {OK}
        assert 1 <= calls.syncs - before <= 3

    drive(tmp_path, test, calls=calls, is_synced=True)
