"""The end of a cleanly stopped log is found, whatever bytes follow the last message."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.clock import ManualClock
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.message_store import DefaultMessageStore


def test_a_file_that_was_made_ahead_is_not_used_yet(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=i) for i in range(5)])
        end = store.commit_log.max_offset
    ahead = tmp_path / "s" / "commitlog" / f"{4096:020d}"
    ahead.write_bytes(bytes(4096))
    with running(small_config(tmp_path / "s")) as store:
        assert store.commit_log.max_offset == end
        put_all(store, [plain(number=i) for i in range(5, 60)])
        assert store.get_message("g", "T", 0, 59, 1).messages[0].keys == ["k59"]


def test_a_file_that_was_made_ahead_of_a_full_one_is_not_used_yet(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=0)])
        store.put_message(plain(number=1, body=b"x" * 3900))  # does not fit: the file is ended
        store.wait_until_dispatched()
    last = tmp_path / "s" / "commitlog" / f"{4096:020d}"
    last.write_bytes(bytes(4096))
    units = tmp_path / "s" / "consumequeue" / "T" / "0" / f"{0:020d}"
    units.write_bytes(units.read_bytes()[:20] + bytes(180))
    with running(small_config(tmp_path / "s")) as store:
        assert store.commit_log.max_offset == 4096
        assert put_all(store, [plain(number=2)])[0].physical_offset == 4096


def test_records_that_no_queue_knows_are_part_of_the_log(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=0)])
        put_all(store, [plain(number=i, sys_flag=0x4) for i in range(1, 60)])
        end = store.commit_log.max_offset
        assert end > 8192
    with running(small_config(tmp_path / "s")) as store:
        assert store.commit_log.max_offset == end
        assert store.get_max_offset_in_queue("T", 0) == 1


def test_a_store_without_messages_is_opened_again(tmp_path: Path) -> None:
    for _ in range(2):
        with running(small_config(tmp_path / "s")) as store:
            assert store.commit_log.max_offset == 0
            assert store.get_earliest_message_time() == -1
            assert store.dispatch_source.queues() == []
    unused = tmp_path / "s" / "commitlog" / f"{0:020d}"
    unused.write_bytes(bytes(4096))
    with running(small_config(tmp_path / "s")) as store:
        assert put_all(store, [plain()])[0].physical_offset == 0


def test_a_log_of_which_old_files_expired_goes_on(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain(number=i) for i in range(100)])
    (tmp_path / "s" / "commitlog" / f"{0:020d}").unlink()
    with running(small_config(tmp_path / "s")) as store:
        assert store.commit_log.min_offset == 4096
        minimum = store.get_min_offset_in_queue("T", 0)
        assert 0 < minimum < 100
        (first,) = store.get_message("g", "T", 0, minimum, 1).messages
        assert first.keys == [f"k{minimum}"]
        assert first.physical_offset == 4096
        assert store.get_earliest_message_time() == first.store_timestamp_ms
        assert put_all(store, [plain(number=100)])[0].queue_offset == 100


def test_queues_without_a_log_are_refused(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [plain()])
    (tmp_path / "s" / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(Invalid, match="consume queues but no commit log"):
        DefaultMessageStore(small_config(tmp_path / "s")).load()


def test_a_record_that_names_another_place_is_not_dispatched(tmp_path: Path) -> None:
    with running(small_config(tmp_path / "s")) as store:
        results = put_all(store, [plain(number=i) for i in range(4)])
    path = tmp_path / "s" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[results[2].physical_offset + 35] ^= 1
    path.write_bytes(data)
    units = tmp_path / "s" / "consumequeue" / "T" / "0" / f"{0:020d}"
    units.write_bytes(bytes(200))
    store = DefaultMessageStore(small_config(tmp_path / "s"), ManualClock())
    store.load()
    with pytest.raises(Corrupt, match="says that it is at"):
        store.start()
    store.shutdown()


@pytest.mark.parametrize("name", ["somewhere else", "commitlog"])
def test_other_folders_are_left_alone(tmp_path: Path, name: str) -> None:
    root = tmp_path / "s"
    root.mkdir()
    if name == "commitlog":
        (root / name).write_text("a file")
    else:
        (root / name).mkdir()
    before = sorted(root.iterdir())
    with pytest.raises(Invalid, match=r"no message store|expected a folder"):
        DefaultMessageStore(small_config(root)).load()
    assert [path for path in sorted(root.iterdir()) if path.name != "lock"] == before


def test_the_life_cycle_goes_forward_only(tmp_path: Path) -> None:
    store = DefaultMessageStore(small_config(tmp_path / "s"), ManualClock())
    with pytest.raises(Invalid, match="start: the store is not loaded"):
        store.start()
    store.load()
    with pytest.raises(Invalid, match="load: the store is loaded"):
        store.load()
    store.shutdown()
    with pytest.raises(Invalid, match="shut down"):
        store.load()
    assert not (tmp_path / "s" / "abort").exists()
    with running(small_config(tmp_path / "s")):
        assert (tmp_path / "s" / "abort").read_text() == str(os.getpid())
        assert (tmp_path / "s" / "lock").read_text() == "lock"
    assert not (tmp_path / "s" / "abort").exists()


def test_several_log_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="storePathCommitLog: expected one folder"):
        DefaultMessageStore(small_config(tmp_path, store_path_commit_log="/a,/b"))


def test_the_log_may_lie_elsewhere(tmp_path: Path) -> None:
    from tieredstore.local.read_only import open_read_only

    config = small_config(tmp_path / "s", store_path_commit_log=str(tmp_path / "log"))
    with running(config) as store:
        put_all(store, [plain()])
    assert (tmp_path / "log" / f"{0:020d}").exists()
    reader = open_read_only(tmp_path / "s", config)
    assert reader.get_message("g", "T", 0, 0, 1).messages[0].keys == ["k0"]
