"""Commit log files are created in advance."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tests.kit.waiting import wait_for
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Exhausted, Unavailable
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.log.mapped_file import RESERVE_BYTES, MappedFile
from tieredstore.local.log.mapped_file_queue import AllocateMappedFileService
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.service_thread import ServiceState

SIZE = 8192


class Maker:
    """Creates files after waiting for `may_go`. The first `failures` calls fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.may_go = threading.Event()
        self.may_go.set()
        self.failures = 0
        self.made: list[int] = []

    def __call__(self, from_offset: int) -> MappedFile:
        self.may_go.wait()
        if self.failures:
            self.failures -= 1
            raise Exhausted("no space")
        self.made.append(from_offset)
        return MappedFile.create(self.folder / f"{from_offset:020d}", from_offset, SIZE)


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


@pytest.fixture
def service(maker: Maker) -> Iterator[AllocateMappedFileService]:
    made = AllocateMappedFileService(maker, wait_ms=2_000)
    made.start()
    yield made
    maker.may_go.set()
    for file in made.stop().values():
        if file is not None:
            file.close()


def test_files_are_made_in_the_background_once_and_in_order(
    maker: Maker, service: AllocateMappedFileService
) -> None:
    maker.may_go.clear()
    for offset in (2 * SIZE, SIZE, SIZE):
        service.request(offset)
    service.request(0)
    assert maker.made == []
    maker.may_go.set()
    file = service.take(SIZE)
    assert service.take(SIZE) is file  # until its taker has it
    service.confirm(SIZE)
    wait_for(lambda: len(maker.made) == 3)
    assert sorted(maker.made) == [0, SIZE, 2 * SIZE]
    assert list(service.stop()) == [0, 2 * SIZE]
    file.close()


def test_a_file_that_could_not_be_made_is_tried_again_by_who_needs_it(
    maker: Maker, service: AllocateMappedFileService
) -> None:
    maker.failures = 2
    service.request(0)
    wait_for(lambda: service.health().state is ServiceState.FAILED)
    with pytest.raises(Exhausted, match="no space"):  # what hindered it, or the second attempt
        service.take(0)
    while maker.failures:
        with pytest.raises(Exhausted):
            service.take(0)
    assert service.take(0).from_offset == 0
    wait_for(lambda: service.health().state is ServiceState.RUNNING)


def test_a_put_waits_for_a_file_so_long_and_no_longer(maker: Maker) -> None:
    service = AllocateMappedFileService(maker, wait_ms=20)
    maker.may_go.clear()
    service.start()
    with pytest.raises(Exhausted, match="within 20 ms"):
        service.take(0)
    maker.may_go.set()
    wait_for(lambda: maker.made == [0])
    files: list[MappedFile] = []

    def is_taken() -> bool:
        with suppress(Exhausted):  # it is made, and may not be handed over yet
            files.append(service.take(0))
        return bool(files)

    wait_for(is_taken)
    assert maker.made == [0]
    service.stop()
    files[0].close()


def test_no_file_is_made_behind_one_that_could_not_be_made(
    maker: Maker, service: AllocateMappedFileService
) -> None:
    maker.failures = 1
    service.request(0)
    wait_for(lambda: service.health().state is ServiceState.FAILED)
    service.request(SIZE)
    wait_for(lambda: service.health().failures > 1)
    assert maker.made == []
    assert service.take(0).from_offset == 0
    assert service.take(SIZE).from_offset == SIZE
    assert maker.made == [0, SIZE]


def test_a_file_behind_a_failed_one_is_made_for_who_needs_both(
    maker: Maker, service: AllocateMappedFileService
) -> None:
    maker.may_go.clear()
    for offset in (0, SIZE):
        service.request(offset)
    maker.failures = 1
    maker.may_go.set()
    wait_for(lambda: service.health().state is ServiceState.FAILED)
    assert service.take(0).from_offset == 0
    assert service.take(SIZE).from_offset == SIZE


def test_before_the_start_and_after_the_end_files_are_made_at_once(maker: Maker) -> None:
    service = AllocateMappedFileService(maker)
    service.request(SIZE)
    service.take(0).close()
    service.start()
    assert service.stop() == {}
    service.take(2 * SIZE).close()
    assert maker.made == [0, 2 * SIZE]


def _names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "commitlog").iterdir())


def test_the_next_two_files_lie_ready_and_go_at_shutdown_when_not_used(tmp_path: Path) -> None:
    with running(small_config(tmp_path)) as store:
        put_all(store, [plain(number=0)])
        wait_for(lambda: len(_names(tmp_path)) == 3)
        put_all(store, [plain(number=number, body=b"x" * 3900) for number in range(1, 4)])
        wait_for(lambda: len(_names(tmp_path)) == 6)
    assert _names(tmp_path) == [f"{number * 4096:020d}" for number in range(4)]


def test_a_file_that_lay_ready_at_a_crash_is_no_part_of_the_log(tmp_path: Path) -> None:
    with running(small_config(tmp_path)) as store:
        [result] = put_all(store, [plain(number=0)])
    for begin in (4096, 8192):
        (tmp_path / "commitlog" / f"{begin:020d}").write_bytes(bytes(4096))
    (tmp_path / "abort").touch()
    with running(small_config(tmp_path)) as store:
        assert store.commit_log.max_offset == result.wrote_bytes
        assert len(store.get_message("g", "T", 0, 0, 9).messages) == 1
        [again] = put_all(store, [plain(number=1)])
        assert again.physical_offset == result.wrote_bytes
        big = [plain(number=number, body=b"x" * 3900) for number in range(2, 5)]
        assert [it.physical_offset for it in put_all(store, big)] == [4096, 8192, 12288]


def test_an_unfinished_file_at_a_crash_is_made_again(tmp_path: Path) -> None:
    with running(small_config(tmp_path)) as store:
        put_all(store, [plain(number=0)])
    (tmp_path / "commitlog" / f"{4096:020d}").touch()
    (tmp_path / "abort").touch()
    with running(small_config(tmp_path)) as store:
        put_all(store, [plain(number=1, body=b"x" * 3900)])
    assert len(_names(tmp_path)) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize("call", ["open", "ftruncate", "posix_fallocate", "fsync", "mmap"])
def test_l12_whatever_hinders_the_making_of_a_file_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    with running(small_config(tmp_path)) as store:
        put_all(store, [plain(number=0)])

        def fail(*_: Any, **__: Any) -> Any:
            raise OSError(code, os.strerror(code))

        big = plain(number=1, body=b"x" * 3900)
        with monkeypatch.context() as patch:
            patch.setattr("mmap.mmap" if call == "mmap" else f"os.{call}", fail)
            while (result := store.put_message(big)).ok:  # what lay ready is used
                pass
            assert result.status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
            assert os.strerror(code) in result.reason
            assert store.put_message(big).status is result.status
        acknowledged = store.next_offset("T", 0)
        assert acknowledged <= 4
        assert put_all(store, [big])[0].queue_offset == acknowledged
        assert store.running_flags.list_raised() == []
        store.wait_until_dispatched()
        assert store.get_max_offset_in_queue("T", 0) == acknowledged + 1


def test_l05_space_is_reserved_in_steps_that_a_nearly_full_disk_still_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = MappedFile.create(tmp_path / "file", 0, 3 * RESERVE_BYTES)
    asked: list[tuple[int, int]] = []
    room = RESERVE_BYTES + 5000

    def allocate(_fd: int, begin: int, length: int) -> None:
        asked.append((begin, length))
        if begin + length > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with closing(file):
        monkeypatch.setattr(os, "posix_fallocate", allocate)
        assert file.reserve(RESERVE_BYTES) == RESERVE_BYTES
        assert asked == []
        assert file.reserve(RESERVE_BYTES + 100) == RESERVE_BYTES + 4096
        assert [length for _, length in asked] == [RESERVE_BYTES, 4 << 20, 1 << 20, 65536, 4096]
        assert file.reserve(RESERVE_BYTES + 4096) == RESERVE_BYTES + 4096
        with pytest.raises(Exhausted, match="No space"):
            file.reserve(RESERVE_BYTES + 4097)
        room = 3 * RESERVE_BYTES
        assert file.reserve(RESERVE_BYTES + 4097) == 2 * RESERVE_BYTES


def test_a_new_file_is_on_disk_with_its_folders_before_the_writer_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync, fdatasync = os.fsync, os.fdatasync

    def note(call: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            synced.append(os.path.relpath(Path(f"/proc/self/fd/{fd}").readlink(), tmp_path))
            call(fd)

        return sync

    monkeypatch.setattr(os, "fsync", note(fsync))
    monkeypatch.setattr(os, "fdatasync", note(fdatasync))
    files = PositionalFiles(writable=True)
    with closing(files), closing(CommitLog(tmp_path / "a" / "log", SIZE, files)) as log:
        log.make_directory()
        log.make_room(100)
    assert synced == [".", "a", f"a/log/{0:020d}", "a/log"]


def test_a_sync_of_a_new_file_that_fails_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(Unavailable, match="sync the new file"):
        MappedFile.create(tmp_path / "file", 0, SIZE)
    assert list(tmp_path.iterdir()) == []


def test_what_a_failed_attempt_could_not_clean_up_hinders_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = PositionalFiles(writable=True)
    with closing(files), closing(CommitLog(tmp_path, SIZE, files)) as log:
        for call in ("ftruncate", "posix_fallocate"):
            with monkeypatch.context() as patch:
                patch.setattr(os, call, fail)
                patch.setattr(os, "unlink", fail)
                with pytest.raises(Exhausted):
                    log.make_room(100)
            assert len(list(tmp_path.iterdir())) == 1
        assert log.make_room(100) == 0


def test_what_a_failed_attempt_left_goes_before_the_unused_file_in_front_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = f"{8192:020d}"
    sync_directory, unlink = FILES.sync_directory, os.unlink

    def is_there() -> bool:
        return (tmp_path / "commitlog" / third).exists()

    def fail_to_sync(path: Path) -> None:
        if is_there():
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        sync_directory(path)

    def fail_to_delete(path: Any, **more: Any) -> None:
        if str(path).endswith(third):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        unlink(path, **more)

    with running(small_config(tmp_path)) as store:
        with monkeypatch.context() as patch:
            patch.setattr(FILES, "sync_directory", fail_to_sync)
            patch.setattr(os, "unlink", fail_to_delete)
            assert store.put_message(plain(number=0)).ok
            wait_for(lambda: store.commit_log.health().state is ServiceState.FAILED)
        assert len(_names(tmp_path)) == 3
    assert _names(tmp_path) == [f"{0:020d}"]


def test_a_file_with_a_message_is_never_made_anew(tmp_path: Path) -> None:
    files = PositionalFiles(writable=True)
    path = tmp_path / f"{0:020d}"
    path.write_bytes(b"\0\0\0\x64" + bytes(SIZE - 4))
    with closing(files), closing(CommitLog(tmp_path, SIZE, files)) as log:
        with pytest.raises(Unavailable, match="File exists"):
            log.make_room(100)
        assert path.stat().st_size == SIZE


def test_a_store_that_is_not_started_makes_no_files_ahead(tmp_path: Path) -> None:
    store = DefaultMessageStore(small_config(tmp_path))
    store.load()
    store.shutdown()
    assert _names(tmp_path) == []
