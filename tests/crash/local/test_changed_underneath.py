"""Commit log files are truncated, deleted or replaced while a store has mapped them. Each store
runs in a separate process, which must exit by itself and must not die from a signal."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PREPARED = """
import logging, os, sys, threading
from contextlib import suppress
from pathlib import Path
from tests.kit.local_stores import plain, put_all, small_config
from tieredstore.contracts.message_store import PutMessageStatus
from tieredstore.errors import TieredStoreError
from tieredstore.local.message_store import DefaultMessageStore

logging.disable(logging.CRITICAL)
root = Path(sys.argv[1])
store = DefaultMessageStore(small_config(root, mapped_file_size_commit_log_bytes=1 << 20))
store.load()
store.start()
put_all(store, [plain(number=number) for number in range(50)])
store.wait_until_dispatched()
[path, *_] = sorted((root / "commitlog").iterdir())

def refused(result):
    assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE, result
    assert str(path) in result.reason, result
    assert store.next_offset("T", 0) == 50

def raised(call):
    try:
        found = call()
    except TieredStoreError as error:
        assert str(path) in str(error), error
    else:
        raise AssertionError(found)
"""


def run(root: Path, code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREPARED + textwrap.dedent(code), str(root)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])


CUTS = {
    "cut": "os.truncate(path, 0)",
    "cut in the middle": "os.truncate(path, 4096)",
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("body_bytes", [100, 20_000])
def test_l13_a_put_into_a_file_that_was_cut_off_is_refused_for_good(
    tmp_path: Path, cut: str, many: bool, body_bytes: int
) -> None:
    put = "store.put_messages([message])" if many else "store.put_message(message)"
    run(
        tmp_path,
        f"""
        {cut}
        message = plain(number=50, body=b"x" * {body_bytes})
        refused({put})
        refused({put})
        os.truncate(path, 1 << 20)  # what was cut off does not come back with the length
        refused({put})
        raised(store.flush)
        """,
    )


def test_l13_a_general_put_into_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        os.truncate(path, 0)
        refused(store.put_message(plain("T", 0, 50, body=b"x" * 40_000)))
        """,
    )


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_l09_a_get_from_a_file_that_was_cut_off_is_an_error(tmp_path: Path, cut: str) -> None:
    run(
        tmp_path,
        f"""
        found = store.get_message("g", "T", 0, 0, 32).messages
        bodies = [bytes(message.body) for message in found]
        {cut}
        raised(lambda: store.get_message("g", "T", 0, 49, 1))
        raised(lambda: store.look_message_by_offset(store.commit_log.max_offset - 100)
               or store.commit_log.get(store.commit_log.max_offset - 100, 50))
        assert bodies == [bytes(message.body) for message in found]  # what was read stays
        """,
    )


def test_l09_what_is_left_of_a_file_is_served(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        os.truncate(path, 4096)
        assert not store.put_message(plain(number=50)).ok
        first = store.get_message("g", "T", 0, 0, 32).messages
        assert 1 <= len(first) < 32 and first[0].keys == ["k0"], first
        """,
    )


def test_l09_a_walk_through_a_file_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        chunk = store.commit_log.rest_of_file(0)
        assert bytes(chunk) == path.read_bytes()[: len(chunk)]
        os.truncate(path, 0)
        assert not any(chunk)  # cut off during a walk: zeros, and an error at the next step
        raised(lambda: store.commit_log.rest_of_file(4096))
        """,
    )


@pytest.mark.parametrize(
    "change", ["os.unlink(path)", "os.rename(other, path)"], ids=["deleted", "replaced"]
)
def test_l13_a_file_that_was_deleted_or_replaced_takes_nothing_that_is_called_flushed(
    tmp_path: Path, change: str
) -> None:
    run(
        tmp_path,
        f"""
        other = root / "other"
        other.write_bytes(bytes(1 << 20))
        {change}
        raised(store.flush)
        result = store.put_message(plain(number=50))
        assert not result.ok
        assert str(path) in result.reason, result
        """,
    )


def test_l13_cuts_at_any_moment_of_puts_and_gets_end_no_process(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        stop = threading.Event()
        failures = []

        def work():
            try:
                while not stop.is_set():
                    store.put_message(plain("T", 1, body=b"x" * 3000))
                    try:
                        store.get_message("g", "T", 1, 0, 32)
                    except TieredStoreError:
                        pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(1_000):
            for each in sorted((root / "commitlog").iterdir()):
                with suppress(FileNotFoundError):  # cut off while it was made, it is given up
                    os.truncate(each, max(900_000 - number * 10_000, 0))
            if not store.put_message(plain(number=50)).ok:
                break
        else:
            failures.append("no put was refused")
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures, failures
        """,
    )
