"""Neither a forked child nor a process that ends without a shutdown harms the store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tieredstore
from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.disk.locks import is_file_at, lock_file, unlock_file
from tieredstore.errors import Fenced, Invalid
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.read_only import open_read_only
from tieredstore.local.recovery.store_lock import StoreLock
from tieredstore.tier.state_files import StateLock
from tieredstore.tier.store import TieredMessageStore

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def _run_child(action: Callable[[], object]) -> int:
    """Run a function in a forked child. Return the child's exit code. It is 0 if no exception was
    raised."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def forked_child() -> Callable[[], Callable[[], None]]:
    """Start a forked child. It lives until the yielded function is called."""

    def begin() -> Callable[[], None]:
        begun, told = os.pipe()
        ends, end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(end)
            os.write(told, b"x")
            os.read(ends, 1)
            os._exit(0)
        os.read(begun, 1)
        os.close(ends)

        def finish() -> None:
            os.close(end)
            os.waitpid(child, 0)
            os.close(begun)
            os.close(told)

        return finish

    return begin


def test_l10_a_forked_child_holds_no_lock_of_a_file(
    tmp_path: Path, forked_child: Callable[[], Callable[[], None]]
) -> None:
    state, path = StateLock(tmp_path / "state"), tmp_path / "lock"
    state.acquire()
    fd = lock_file(path)
    finish = forked_child()
    try:
        state.release()
        unlock_file(fd)
        again = StateLock(tmp_path / "state")
        again.acquire()
        again.release()
        unlock_file(lock_file(path))
    finally:
        finish()


def test_l10_a_forked_child_takes_the_lock_away_from_nobody(tmp_path: Path) -> None:
    fd = lock_file(tmp_path / "lock")

    def check() -> None:
        assert not is_file_at(tmp_path / "lock", fd)
        with pytest.raises(BlockingIOError):
            lock_file(tmp_path / "lock")
        os.close(fd)  # as an object of the parent does that ends here

    assert _run_child(check) == 0
    with pytest.raises(BlockingIOError):
        lock_file(tmp_path / "lock")
    unlock_file(fd)


def test_l10_the_owner_of_a_store_goes_on_beside_its_forked_children(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        put_all(store, [plain(number=0)])

        def use() -> None:
            result = store.put_message(plain(number=1))
            assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            assert "forked" in result.reason
            assert not store.put_messages([plain(number=1)]).ok
            with pytest.raises(Invalid, match="shut down"):
                store.get_message("g", "T", 0, 0, 1)
            with pytest.raises(Invalid, match="shut down"):
                store.flush()
            with pytest.raises(Fenced, match=f"process {os.getppid()}"):
                DefaultMessageStore(small_config(root)).load()
            store.shutdown()

        for _ in range(2):
            assert _run_child(use) == 0
            assert (root / "abort").exists()
            assert len(put_all(store, [plain(number=2)])) == 1
        with pytest.raises(Fenced, match="this process"):
            StoreLock(root).acquire()


def test_l10_a_forked_child_opens_a_store_once_its_owner_has_ended(tmp_path: Path) -> None:
    root = tmp_path / "s"
    store = DefaultMessageStore(small_config(root))
    store.load()
    store.start()
    begun, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(begun, 1)
        try:
            with running(small_config(root)) as own:
                put_all(own, [plain(number=1)])
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    put_all(store, [plain(number=0)])
    store.shutdown()
    os.write(told, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(begun)
    os.close(told)
    with running(small_config(root)) as again:
        assert again.get_max_offset_in_queue("T", 0) == 2


def test_l10_a_store_with_queues_in_rocksdb_goes_on_beside_its_forked_children(
    tmp_path: Path,
) -> None:
    pytest.importorskip("rocksdict")
    root, other = tmp_path / "s", small_config(tmp_path / "o", store_type="defaultRocksDB")
    with running(other) as store:
        put_all(store, [plain(number=0)])
    with running(small_config(root, store_type="defaultRocksDB")) as store:
        put_all(store, [plain(number=0)])

        def use() -> None:
            assert store.put_message(plain()).status is PutMessageStatus.SERVICE_NOT_AVAILABLE
            with pytest.raises(Invalid, match="shut down"):
                store.get_message("g", "T", 0, 0, 1)
            store.shutdown()
            # A database of its own would wait for ever at its end.
            with pytest.raises(Invalid, match=f"forked from process {os.getppid()}.*spawn"):
                DefaultMessageStore(other).load()
            reader = open_read_only(tmp_path / "o")
            assert len(reader.get_message("g", "T", 0, 0, 9).messages) == 1
            reader.shutdown()

        for number in range(1, 3):
            assert _run_child(use) == 0
            assert put_all(store, [plain(number=number)])[0].queue_offset == number
    with running(other) as store:
        assert store.get_max_offset_in_queue("T", 0) == 1


def test_l10_the_tier_of_a_store_stays_its_own_beside_forked_children(tmp_path: Path) -> None:
    config = {
        "storePathRootDir": str(tmp_path / "store"),
        "mappedFileSizeCommitLog": "65536",
        "brokerName": "b",
        "brokerClusterName": "c",
        "messageStorePlugIn": "tiered",
        "tieredBackendServiceProvider": "posix",
        "tieredStoreFilePath": str(tmp_path / "tier"),
    }
    with tieredstore.open_store(config) as store:
        assert isinstance(store, TieredMessageStore)
        assert store.put_message(plain(number=0)).ok
        for _ in range(2):
            assert _run_child(store.shutdown) == 0  # as at the end of a `with` block
            assert store.put_message(plain(number=1)).ok
            store.next_store.wait_until_visible(store.put_message(plain(number=2)))
            store.dispatcher.scan(force=True)
            with pytest.raises(Fenced):
                StateLock(tmp_path / "store").acquire()
        file = store.flat_files.get("T", 0)
        assert file is not None
        assert file.consume_queue_max_offset == 5
    with tieredstore.open_store(config) as store:
        assert store.get_max_offset_in_queue("T", 0) == 5


ENDS = """
import sys, time
from pathlib import Path
from tests.kit.local_stores import plain, small_config
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.read_only import open_read_only
store = DefaultMessageStore(small_config(Path(sys.argv[1])))
store.load()
store.start()
for number in range(500):
    assert store.put_message(plain(number=number)).ok
raise SystemExit("an exception of a script")
"""


def test_l11_an_exception_of_a_script_ends_the_process(tmp_path: Path) -> None:
    root = tmp_path / "s"
    ended = subprocess.run(
        [sys.executable, "-c", ENDS, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.endswith("an exception of a script\n")
    assert (root / "abort").exists()


UPLOADS = """
import sys, threading
from tieredstore.tier.worker_pool import run_worker_pool
begun, never = threading.Event(), threading.Event()
def step():
    begun.set()
    return not never.wait(0.05)
upload = threading.Thread(target=run_worker_pool, args=(step, 4, "upload"), daemon=True)
upload.start()
begun.wait()
raise SystemExit("an exception of a script")
"""


def test_l11_a_process_that_ends_does_not_wait_for_its_uploads(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", UPLOADS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (1, "an exception of a script\n")
