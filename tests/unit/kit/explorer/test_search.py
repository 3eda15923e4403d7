"""The search covers every order of requests and reports its findings."""

from __future__ import annotations

from collections.abc import Callable

from tests.kit.explorer.process import Process, Program
from tests.kit.explorer.programs import BROKER, READY
from tests.kit.explorer.promises import Began, Broken, Disturbed, Piece
from tests.kit.explorer.search import START_MS, Scenario, explore
from tests.kit.explorer.wire import Disk, Request, Store

KEY = "x"
PIECE = Piece(f"{BROKER}/T/0", 0, b"a", 1)


def put(key: str, content: bytes = b"") -> Request:
    return Request("PUT", key, (content, ()))


def note_value(process: Process, request: Request) -> None:
    process.note(process.ask(request).value)


def asking(*requests: Request) -> Program:
    def run(process: Process) -> None:
        for request in requests:
            note_value(process, request)

    return run


def listing(process: Process) -> None:
    found = process.ask(Request("LIST", "", ("",))).value
    assert isinstance(found, tuple)
    process.note(",".join(info.key for info in found) or "nothing")


def said(faults: int = 0, **parties: Callable[[Process], None]) -> set[str]:
    result = explore(Scenario(parties, faults=faults))
    assert result.broken is None
    assert result.is_whole
    return set(result.said)


def test_every_order_is_tried() -> None:
    assert said(one=asking(put("a"), put("b")), two=listing) >= {
        "two: nothing",
        "two: a",
        "two: a,b",
    }


def test_one_of_two_creates_wins_whichever() -> None:
    assert said(one=asking(put(KEY)), two=asking(put(KEY))) == {
        "one: True",
        "one: False",
        "two: True",
        "two: False",
    }


def test_a_request_comes_late_or_twice_or_its_reply_is_lost() -> None:
    def run(process: Process) -> None:
        lost = process.ask(put(KEY)).is_lost
        process.note(f"lost {lost}")
        gone = process.ask(Request("DELETE", KEY, (KEY,))).is_lost
        found = process.ask(Request("GET", KEY, (0, 1))).value
        process.note(f"lost {lost}, {gone}, found {found!r}")

    assert said(faults=0, one=run) == {"one: lost False", "one: lost False, False, found None"}
    assert said(faults=1, one=run) == {
        "one: lost False",
        "one: lost True",
        "one: lost False, False, found None",
        "one: lost False, False, found b''",  # the create came twice, or the GET's reply is lost
        "one: lost True, False, found None",
        "one: lost True, False, found b''",  # the create came late
        "one: lost False, True, found b''",  # the deletion is still on its way
        "one: lost False, True, found None",
    }


def test_what_is_done_alone_is_not_interrupted() -> None:
    def run(process: Process) -> None:
        note_value(process, put("a"))
        process.ask(READY)
        note_value(process, put("b"))

    assert said(one=run, two=listing) >= {"two: a", "two: a,b"}
    assert "two: nothing" not in said(one=run, two=listing)


def test_a_broken_promise_is_told_with_the_shortest_way_to_it() -> None:
    def run(process: Process) -> None:
        process.note(Began("one", 1))
        note_value(process, put("b"))
        if process.ask(put(KEY)).value is False:
            process.note(Disturbed(PIECE, "taken"))

    result = explore(Scenario({"one": run, "two": asking(put(KEY))}, faults=0))
    assert result.broken is not None
    assert [step.who for step in result.steps] == ["one", "two", "one"]
    assert "3 one  PUT x b'': taken" in str(result)
    assert str(result).endswith(f"BROKEN: {result.broken}")


def test_the_store_answers_the_same_for_the_same_content() -> None:
    store = Store(page_keys=2)
    disk, reply = store.answer(Disk(frozenset(), START_MS), put("a", b"1"))
    assert reply.value is True
    other, _ = store.answer(disk, put("b", b"2"))
    swapped = store.answer(
        store.answer(Disk(frozenset(), START_MS), put("b", b"2"))[0], put("a", b"1")
    )
    assert other == swapped[0]
    page = store.answer(other, Request("LIST", "", ("",)))[1].value
    assert isinstance(page, tuple)
    assert [info.key for info in page] == ["a", "b"]
    assert store.answer(other, Request("GET", "b", (0, 9)))[1].value == b"2"
    assert store.answer(other, put("a", b"3"))[1].value is False
    assert isinstance(store.answer(other, Request("DELETE", "a", ("a",)))[0], Disk)


def test_the_broken_promise_of_a_note_names_the_piece() -> None:
    note = Disturbed(PIECE, "the seal")
    assert isinstance(Broken(str(note)).what, str)
    assert "'a' at 0 of b/T/0 (epoch 1)" in str(note)
