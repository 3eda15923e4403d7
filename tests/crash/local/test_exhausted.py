"""Disk space, file descriptors or memory run out at each operation of a store in turn, and are
later available again (L05 and L12 of `docs/faults.md`)."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from tests.kit.crash.recorder import record
from tests.kit.crash.store_check import (
    Acknowledged,
    Put,
    check_contents,
    read_contents,
)
from tests.kit.local_stores import plain, small_config
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.errors import Exhausted, TieredStoreError
from tieredstore.local.message_store import DefaultMessageStore

NEEDS = {
    errno.ENOSPC: frozenset({"open", "write", "allocate", "truncate", "mkdir", "rename", "link"}),
    errno.EMFILE: frozenset({"open"}),
    errno.ENOMEM: frozenset({"open", "write", "allocate", "mkdir", "rename", "unlink"}),
}
"""For each error number, the operations that may fail with it."""
SPAN = 6
"""Number of consecutive operations that fail."""
WAIT_S = 30.0


class Injection:
    """Makes SPAN consecutive operations fail with an error number, starting with operation number
    `first`."""

    def __init__(self, number: int, first: int) -> None:
        self.number = number
        self.first = first
        self.seen = 0
        self.failed = 0

    def __call__(self, name: str, path: str) -> None:
        if name not in NEEDS[self.number]:
            return
        at, self.seen = self.seen, self.seen + 1
        if self.first <= at < self.first + SPAN:
            self.failed += 1
            raise OSError(self.number, os.strerror(self.number), path)


EVERY = [3, pytest.param(1, marks=pytest.mark.slow)]
"""Stride of the failing operations. The daily run lets every third operation fail, the slow run
all."""


def run_program(root: Path, injection: Injection, flush_disk_type: str) -> int:
    """Put, flush and shut down while operations fail. Assert that no message is lost and that the
    store recovers by itself. Return the number of operations that could fail."""
    root.mkdir()
    facts: list[object] = []
    config = small_config(root / "store", flush_disk_type=flush_disk_type)
    with record(root) as recorder:
        store = DefaultMessageStore(config)
        store.load()
        store.start()
        recorder.on_operation = injection
        refused = []
        for number in range(12):
            topic, queue_id = ("A", number % 2) if number % 3 else ("B", 0)
            body = b"%d-" % number + b"x" * (number * 97 % 700)
            result = store.put_message(plain(topic, queue_id, number, body=body))
            if result.status is PutMessageStatus.PUT_OK and _is_durable(result):
                facts += [Put(topic, queue_id, (body,)), Acknowledged()]
            elif result.ok:  # stored, the flush was late
                facts.append(Put(topic, queue_id, (body,)))
            else:
                assert result.reason
                refused.append(body)
            if number % 4 == 3:
                try:
                    store.flush()
                except TieredStoreError:
                    continue
        _wait_until_it_goes_on(store, facts)
        recorder.on_operation = lambda name, path: None
        contents = read_contents(store)
        check_contents(contents, facts)
        for bodies in contents.bodies().values():
            assert not set(refused) & set(bodies), "a refused message is there"
        store.flush()
        store.shutdown()
    after = DefaultMessageStore(config)
    after.load()
    after.start()
    try:
        assert read_contents(after).bodies() == contents.bodies()
    finally:
        after.shutdown()
    return injection.seen


def _is_durable(result: object) -> bool:
    status = result.durable.result(WAIT_S)  # type: ignore[attr-defined]
    return status in (None, PutMessageStatus.PUT_OK)


def _wait_until_it_goes_on(store: DefaultMessageStore, facts: list[object]) -> None:
    """Put a message repeatedly until the store accepts it, then wait until it can be read. The
    store must recover without intervention."""
    end = time.monotonic() + WAIT_S
    number = 1000
    while True:
        number += 1
        body = b"last-%d" % number
        result = store.put_message(plain("A", 0, number, body=body))
        if result.ok:
            facts.append(Put("A", 0, (body,)))
            break
        assert time.monotonic() < end, result
        time.sleep(0.01)
    while True:
        try:
            store.wait_until_visible(result)
            return
        except Exhausted as error:  # of the caller's own part of the dispatch
            if time.monotonic() > end:
                raise AssertionError from error


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("number", NEEDS, ids=lambda number: errno.errorcode[number])
def test_l05_l12_what_runs_out_comes_back(
    tmp_path: Path, number: int, flush_disk_type: str, every: int
) -> None:
    """After space, descriptors or memory ran out at any operation, a store continues without a
    restart."""
    count = run_program(tmp_path / "none", Injection(number, 1 << 30), flush_disk_type)
    assert count > 10
    failed = 0
    places = range(0, count, every)
    for first in places:
        injection = Injection(number, first)
        try:
            run_program(tmp_path / f"at{first}", injection, flush_disk_type)
        except Exception as error:
            error.add_note(f"{errno.errorcode[number]} from operation {first} on")
            raise
        failed += injection.failed
    assert failed >= len(places)
