"""Ctrl-C and other signals interrupt a store at every instruction of a caller's thread. The signal
handlers raise an exception."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kit.interrupts import Interrupt, call_interrupted, raising_signal, run_elsewhere
from tests.kit.local_stores import plain, running, small_config
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.columns.walk import Stop, walk_records
from tieredstore.message.crc import crc32
from tieredstore.message.encoding import Message
from tieredstore.message.record import decode_record

MEBIBYTE = 1 << 20
EVERY = [3, pytest.param(1, marks=pytest.mark.slow)]
"""Stride of the interrupted instructions. The daily run tests every third instruction, the slow run
all."""
OTHER = plain("T", 1)
"""A message for a queue to which no other thread writes."""


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    with raising_signal():
        yield


def read_log(log: CommitLog, offset: int) -> list[tuple[str, int, int]]:
    """Return the topic, queue id and queue offset of all records, starting at a log offset. Check
    each record."""
    found = []
    while offset < log.max_offset:
        rest = log.rest_of_file(offset)
        walk = walk_records(rest)
        assert walk.stop in (Stop.END, Stop.BLANK), f"half a message at {offset}: {walk.stop}"
        for position in walk.positions.tolist():
            message = decode_record(rest, position)
            assert message.physical_offset == offset + position
            assert message.body_crc == crc32(message.body)
            found.append((message.topic, message.queue_id, message.queue_offset))
        offset += walk.next_position
        if walk.stop is Stop.BLANK:
            offset += log.file_size - offset % log.file_size
    return found


class Checker:
    """Checks after each interrupt that the store is intact."""

    def __init__(self, store: DefaultMessageStore) -> None:
        self.store = store
        self._end = 0
        self._next: dict[tuple[str, int], int] = {}

    def check(self) -> None:
        run_elsewhere(self._check)

    def _check(self) -> None:
        store = self.store
        log = store.commit_log
        self._wait_visible()  # no other thread helps: the dispatch was woken
        store.wait_until_dispatched()  # ends, though a rolled file alone brings no message
        assert store.put_message(OTHER).ok
        for topic, queue_id, queue_offset in read_log(log, self._end):
            assert queue_offset == self._next.get((topic, queue_id), 0), "offsets are gapless"
            self._next[topic, queue_id] = queue_offset + 1
        self._end = log.max_offset
        store.wait_until_dispatched()
        for (topic, queue_id), count in self._next.items():
            assert store.next_offset(topic, queue_id) == count
            assert store.get_max_offset_in_queue(topic, queue_id) == count
            last = store.get_message("g", topic, queue_id, count - 1, 1).messages
            assert [message.queue_offset for message in last] == [count - 1]

    def _wait_visible(self) -> None:
        until = time.monotonic() + 10
        for state in self.store._appender.queues:
            queue = (state.topic, state.queue_id)
            while self.store.get_max_offset_in_queue(*queue) < self.store.next_offset(*queue):
                assert time.monotonic() < until, "the dispatch sleeps"
                time.sleep(0.0005)


def interrupt_everywhere(
    store: DefaultMessageStore, call: Callable[[], object], every: int
) -> None:
    """Repeat an interrupted call until it finishes without an interrupt. Each interrupt comes
    `every` instructions later than the previous one."""
    checker = Checker(store)
    checker.check()
    step = 1
    while call_interrupted(call, step):
        checker.check()
        step += every
    assert step > 20


def put_plain(store: DefaultMessageStore) -> None:
    store.put_message(plain("T", 0, body=b"x" * 40))


def put_batch(store: DefaultMessageStore) -> None:
    store.put_messages([plain("T", 0, number) for number in range(3)])


def put_to_new_queue(store: DefaultMessageStore) -> None:
    store.put_message(plain(f"N{len(store._appender.queues)}"))


def put_large(store: DefaultMessageStore) -> None:
    store.put_message(plain("T", 0, body=b"x" * 33_000))


def put_light(store: DefaultMessageStore) -> None:
    properties = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}
    store.put_message(Message.create("T", b"light", queue_id=0, properties=properties))


def put_and_help(store: DefaultMessageStore) -> None:
    store._appender._help_values = 0
    store.put_message(plain("T", 0))
    store._appender._help_values = 1 << 30


def put_and_wait(store: DefaultMessageStore) -> None:
    with store._reput._lock:  # the dispatch is this thread's
        store.put_message(plain("T", 0))
        store.wait_until_dispatched()


def get(store: DefaultMessageStore) -> None:
    store.get_message("g", "T", 1, 0, 4)


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize(
    "call",
    [
        put_plain,
        put_batch,
        put_to_new_queue,
        put_large,
        put_light,
        put_and_help,
        put_and_wait,
        get,
    ],
    ids=lambda call: call.__name__,
)
def test_l14_an_interrupt_at_any_instruction_leaves_a_whole_store(
    tmp_path: Path, call: Callable[[DefaultMessageStore], None], every: int
) -> None:
    config = small_config(
        tmp_path / "s",
        mapped_file_size_commit_log_bytes=64 * MEBIBYTE,
        mapped_file_size_consume_queue_bytes=20 * 100_000,
        max_hash_slot_num=1000,
        max_index_num=200_000,
        enable_lmq=True,
        enable_multi_dispatch=True,
    )
    with running(config, SYSTEM_CLOCK) as store:
        put_plain(store)
        interrupt_everywhere(store, lambda: call(store), every)
    with running(config, SYSTEM_CLOCK) as store:
        Checker(store).check()


@pytest.mark.parametrize("every", EVERY)
def test_l14_an_interrupt_while_a_file_is_rolled_leaves_a_whole_store(
    tmp_path: Path, every: int
) -> None:
    config = small_config(tmp_path / "s", message_index_enable=False)  # 4 KiB: each put rolls
    with running(config, SYSTEM_CLOCK) as store:
        message = plain("T", 0, body=b"x" * 3_000)
        interrupt_everywhere(store, lambda: store.put_message(message), every)
    with running(config, SYSTEM_CLOCK) as store:
        Checker(store).check()


def test_l14_an_interrupted_flush_keeps_no_lock(tmp_path: Path) -> None:
    # One index file: puts between two flushes do not make a flush longer.
    config = small_config(
        tmp_path / "s", mapped_file_size_commit_log_bytes=MEBIBYTE, max_index_num=1 << 16
    )
    with running(config, SYSTEM_CLOCK) as store:
        checker = Checker(store)
        put_plain(store)
        step = 1
        while call_interrupted(store.flush, step):
            checker.check()
            step += 7  # a flush is many instructions, and syncs
        store.flush()


def test_l14_signals_at_any_time_while_others_put(tmp_path: Path) -> None:
    """Signals arrive while several threads put messages. Some signals reach a thread that waits for
    the lock."""
    chance = random.Random(1)
    config = small_config(
        tmp_path / "s",
        mapped_file_size_commit_log_bytes=MEBIBYTE,
        mapped_file_size_consume_queue_bytes=2 * MEBIBYTE,
        message_index_enable=False,
    )
    stop = threading.Event()
    message = plain("T", 2)

    def put_beside(store: DefaultMessageStore) -> None:
        while not stop.is_set():
            assert store.put_message(message).ok

    with raising_signal(signal.SIGALRM), running(config, SYSTEM_CLOCK) as store:
        checker = Checker(store)
        for _ in range(20):
            stop.clear()
            beside = threading.Thread(target=put_beside, args=(store,))
            beside.start()
            with suppress(Interrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + chance.random() * 0.003)
                while True:
                    store.put_message(message)
            stop.set()
            beside.join(20)
            assert not beside.is_alive(), "a lock stayed taken"
            checker.check()
