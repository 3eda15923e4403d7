"""Memory runs out during a put. The store refuses the message or stores it completely, and releases
every lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import START_MS, plain, put_all, running, small_config
from tieredstore.clock import ManualClock
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import PutMessageResult
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.put.compiled import find_appender_class
from tieredstore.local.running_flags import RunningFlags
from tieredstore.message.encoding import Message, RecordEncoder
from tieredstore.message.hosts import LOCALHOST

LOG_BYTES = 1 << 20
MOST_ALLOCATIONS = 1_000
ENOUGH_OK = 10
"""A test ends after this number of consecutive successful puts. The allocation that should fail
then comes after the last allocation of a put."""
FIRST_OFFSET = 1_000_000
"""First queue offset. It is large, because Python allocates no memory for small integers."""

_testcapi: Any = pytest.importorskip("_testcapi", reason="the interpreter's own tests are not here")


@pytest.mark.parametrize("site", ["raw_crc32", "copy_parts"])
def test_p01_an_error_in_the_middle_of_a_put_keeps_no_lock_and_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    from tieredstore.local.put import appender, general

    calls = 0

    def no_memory(*_: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:  # at the second message of a batch
            raise MemoryError
        return 0

    def fail(*_: Any) -> None:
        raise MemoryError

    with running(small_config(tmp_path / "s", enable_lmq=True)) as store:
        put_all(store, [plain(number=0)])
        end = store.commit_log.max_offset
        with monkeypatch.context() as patch:
            # Now and then a put of any kind goes the general way.
            patch.setattr(general, "copy_parts", fail)
            if site == "raw_crc32":
                patch.setattr(appender, "raw_crc32", no_memory)
                # No bytes: the compiled core leaves it to Python.
                batch = [plain(number=number, body=bytearray(b"body")) for number in (1, 2)]
                refused = store.put_messages(batch)
            else:
                refused = store.put_message(plain(number=1, sys_flag=0x8))
        assert refused.status is PutMessageStatus.CREATE_MAPPED_FILE_FAILED
        assert "no memory" in refused.reason
        assert store.commit_log.max_offset == end
        assert put_all(store, [plain(number=3)])[0].queue_offset == 1
        found = store.get_message("g", "T", 0, 0, 9).messages
        assert [message.keys for message in found] == [["k0"], ["k3"]]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    files = PositionalFiles(writable=True)
    with closing(files), closing(CommitLog(tmp_path, LOG_BYTES, files)) as log:
        yield log


def _is_lock_free(appender: MessageAppender) -> bool:
    free: list[bool] = []
    thread = threading.Thread(target=lambda: free.append(appender.find_held_lock() is None))
    thread.start()
    thread.join()
    return free == [True]


def _put_one(appender: MessageAppender) -> PutMessageResult:
    return appender.put(ONE)


def _put_special(appender: MessageAppender) -> PutMessageResult:
    return appender.put(SPECIAL)


def _put_many(appender: MessageAppender) -> PutMessageResult:
    return appender.put_batch(MANY)


ONE = plain(number=1)
SPECIAL = plain(number=1, sys_flag=0x8)
MANY: list[Message] = [plain(number=number, body=b"x" * 700) for number in range(5)]


@pytest.mark.parametrize("kind", sorted({MessageAppender, find_appender_class()}, key=str))
@pytest.mark.parametrize(("put", "count"), [(_put_one, 1), (_put_special, 1), (_put_many, 5)])
@pytest.mark.parametrize("failing", [1, 30])
def test_p01_each_allocation_of_a_put_fails_in_turn_and_nothing_is_stored_by_half(
    log: CommitLog,
    kind: type[MessageAppender],
    put: Callable[[MessageAppender], PutMessageResult],
    count: int,
    failing: int,
) -> None:
    """Each allocation of a put fails in turn. A put stores all its messages or none. `failing` is
    the number of consecutive allocations that fail."""
    appender = kind(log, RecordEncoder(LOCALHOST), ManualClock(START_MS), RunningFlags())
    appender.find_next_offset = lambda *_: FIRST_OFFSET
    appender.open()
    assert put(appender).ok
    outcomes: list[str] = []
    for number in range(1, MOST_ALLOCATIONS):
        end, next_offset = log.max_offset, appender.next_offset("T", 0)
        result = None
        _testcapi.set_nomemory(number, number + failing)
        try:
            result = put(appender)
        except MemoryError:
            pass
        finally:
            _testcapi.remove_mem_hooks()
        moved = appender.next_offset("T", 0) - next_offset
        assert moved == (count if log.max_offset > end else 0), number
        if result is not None:
            assert result.ok == (moved > 0), number
        assert _is_lock_free(appender), number
        outcomes.append("raised" if result is None else result.status.name)
        if outcomes[-ENOUGH_OK:] == ["PUT_OK"] * ENOUGH_OK:
            break
    assert outcomes[-1] == "PUT_OK"
    # Where one fails in the compiled core, Python puts the message.
    assert outcomes[0] != "PUT_OK" or (failing == 1 and kind is not MessageAppender)
    rows = appender.take_rows()
    assert rows.end_offset == log.max_offset
    assert len(rows.rows) == 3 * (appender.next_offset("T", 0) - FIRST_OFFSET)
