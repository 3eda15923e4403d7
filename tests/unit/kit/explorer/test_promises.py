"""Tests of the guarantees that the explorer checks."""

from __future__ import annotations

from collections.abc import Hashable

from tests.kit.explorer.promises import (
    Acknowledged,
    Attempt,
    Began,
    Broken,
    DeleteBegins,
    DeleteEnds,
    Disturbed,
    Inherited,
    Ledger,
    Piece,
    Seen,
    SessionBegins,
)

FILE = "b/T/0"
OLD, NEW = Piece(FILE, 0, b"ab", 1), Piece(FILE, 2, b"CD", 2)
ALL = (FILE, 0, 100)


def after(*notes: Hashable) -> Ledger:
    ledger: Ledger | Broken = Ledger()
    for note in notes:
        assert isinstance(ledger, Ledger)
        ledger = ledger.after(note)
    assert isinstance(ledger, Ledger), ledger
    return ledger


def fault(ledger: Ledger, content: bytes) -> str:
    broken = ledger.check([Seen("r", FILE, ((0, content),))], ledger.owed_pieces, ledger.gone)
    return broken.what if broken is not None else ""


def test_what_was_acknowledged_is_owed_to_each_reader() -> None:
    ledger = after(Attempt(OLD), Acknowledged(OLD))
    assert fault(ledger, b"ab") == ""
    assert "was acknowledged" in fault(ledger, b"a")
    assert "was acknowledged" in fault(after(Attempt(OLD), Attempt(NEW), Acknowledged(OLD)), b"")


def test_what_was_only_tried_may_be_there_but_nothing_else_may() -> None:
    ledger = after(Attempt(OLD))
    assert fault(ledger, b"") == ""
    assert fault(ledger, b"ab") == ""
    assert "never written there" in fault(ledger, b"ba")
    assert "never written there" in fault(ledger, b"abx")


def test_what_is_deleted_is_owed_no_more_and_gone_when_that_was_told() -> None:
    begun = after(Attempt(OLD), Acknowledged(OLD), DeleteBegins(*ALL, 1))
    assert fault(begun, b"") == fault(begun, b"ab") == ""
    ended = begun.after(DeleteEnds(*ALL, 1))
    assert isinstance(ended, Ledger)
    assert fault(ended, b"") == ""
    assert "deleted life" in fault(ended, b"ab")


def test_a_write_of_a_lower_epoch_than_the_deletion_belongs_to_the_deleted_life() -> None:
    ledger = after(DeleteEnds(*ALL, 2), Attempt(OLD))
    assert "deleted life" in fault(ledger, b"ab")
    again = after(DeleteEnds(*ALL, 2), Attempt(Piece(FILE, 0, b"ab", 2)))
    assert fault(again, b"ab") == ""


def test_what_a_successor_inherited_its_predecessor_cannot_delete() -> None:
    ledger = after(Attempt(OLD), Acknowledged(OLD), Inherited(FILE, 0, 2, 2), DeleteBegins(*ALL, 1))
    assert "was acknowledged" in fault(ledger, b"")


def test_a_successor_inherits_what_was_acknowledged() -> None:
    broken = after(Attempt(OLD), Acknowledged(OLD)).after(Inherited(FILE, 0, 1, 2))
    assert isinstance(broken, Broken)


def test_a_reader_is_owed_what_was_acknowledged_when_it_began() -> None:
    nothing = Seen("r", FILE, ())
    early = after(SessionBegins("r"), Attempt(OLD), Acknowledged(OLD))
    assert isinstance(early.after(nothing), Ledger)
    late = after(Attempt(OLD), Acknowledged(OLD), SessionBegins("r"))
    assert isinstance(late.after(nothing), Broken)
    gone = late.after(DeleteBegins(*ALL, 1))
    assert isinstance(gone, Ledger)
    assert isinstance(gone.after(nothing), Ledger)


def test_only_the_newest_writer_must_not_be_disturbed() -> None:
    disturbed = Disturbed(OLD, "the seal")
    assert isinstance(after(Began("one", 1)).after(disturbed), Broken)
    assert isinstance(after(Began("one", 1), Began("two", 2)).after(disturbed), Ledger)
