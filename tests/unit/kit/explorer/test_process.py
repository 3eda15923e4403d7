"""The explorer's processes depend only on the replies that they receive."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kit.explorer.process import Party, Process, Situation, explored_threads
from tests.kit.explorer.wire import Reply, Request
from tests.kit.waiting import wait_for

A, B, C = (Request("GET", name) for name in "abc")


@pytest.fixture(autouse=True)
def explored() -> Iterator[None]:
    with explored_threads():
        yield


def answer(party: Party, *replies: tuple[int, object]) -> Situation:
    situation = party.beginning
    for task, value in replies:
        situation = party.answer(situation, task, Reply(value))
    return situation


def test_a_process_stops_at_each_request_and_goes_on_by_its_reply() -> None:
    def program(process: Process) -> None:
        process.note(process.ask(A).value)
        process.note(process.ask(B).value)

    party = Party("p", program, 0)
    assert party.beginning.waiting == {0: A}
    assert answer(party, (0, 1)).waiting == {0: B}
    assert answer(party, (0, 1)).notes == (1,)
    assert answer(party, (0, 1), (0, 2)).notes == (2,)
    assert answer(party, (0, 1), (0, 2)).waiting == {}


def test_what_was_run_once_is_remembered() -> None:
    party = Party("p", lambda process: process.note(process.ask(A).value), 0)
    before = party.run_count
    assert answer(party, (0, 7)) is answer(party, (0, 7))
    assert party.run_count == before + 1


def test_a_lock_is_held_while_its_task_waits_for_a_reply() -> None:
    def program(process: Process) -> None:
        lock = threading.RLock()

        def work(request: Request) -> None:
            with lock, lock:
                process.ask(request)
                process.note(request.key)

        process.spawn(lambda: work(A))
        process.spawn(lambda: work(B))

    party = Party("p", program, 0)
    assert party.beginning.waiting == {1: A}, "the second waits for the lock"
    assert answer(party, (1, 0)).waiting == {2: B}


def test_tasks_that_hold_no_lock_wait_side_by_side_and_are_answered_in_any_order() -> None:
    def program(process: Process) -> None:
        process.spawn(lambda: process.note(process.ask(B).value))
        process.note(process.ask(A).value)

    party = Party("p", program, 0)
    assert party.beginning.waiting == {0: A, 1: B}
    assert answer(party, (1, "b")).waiting == {0: A}
    assert answer(party, (1, "b"), (0, "a")).notes == ("a",)


def test_a_condition_is_waited_for() -> None:
    def program(process: Process) -> None:
        changed = threading.Condition()
        done: list[int] = []

        def work() -> None:
            process.ask(A)
            with changed:
                done.append(1)
                changed.notify_all()

        process.spawn(work)
        with changed:
            changed.wait_for(lambda: bool(done))
        process.ask(B)

    party = Party("p", program, 0)
    assert party.beginning.waiting == {1: A}
    assert answer(party, (1, 0)).waiting == {0: B}


def test_who_waits_for_a_limited_time_goes_on_when_nobody_else_can() -> None:
    def program(process: Process) -> None:
        process.note(threading.Event().wait(5))

    assert Party("p", program, 0).beginning.notes == (False,)


def test_pools_and_random_identifiers_follow_from_the_replies() -> None:
    def program(process: Process) -> None:
        with ThreadPoolExecutor(2) as pool:
            process.note(pool.submit(lambda: process.ask(A).value).result())
        process.ask(Request("GET", uuid.uuid4().hex))

    first, second = Party("p", program, 0), Party("p", program, 0)
    assert first.beginning.waiting == {0: A}
    assert answer(first, (0, 1)).waiting == answer(second, (0, 1)).waiting


def test_a_process_that_does_not_do_the_same_twice_is_found_out() -> None:
    requests = iter([A, B, C])

    def program(process: Process) -> None:
        request = next(requests)
        process.spawn(lambda: process.note(process.ask(C).value))
        process.ask(request)

    party = Party("p", program, 0)
    with pytest.raises(AssertionError, match="does not do the same twice"):
        answer(party, (1, 0))


def test_an_error_of_a_program_is_an_error_of_the_search() -> None:
    def program(process: Process) -> None:
        process.ask(A)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        answer(Party("p", program, 0), (0, 0))


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    Party("p", lambda process: process.note(process.ask(A)), 0)
    wait_for(lambda: set(threading.enumerate()) <= before)
