"""The journal of a job survives a kill, and is not used for a different job."""

from __future__ import annotations

import errno
import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tieredstore.errors import Busy, Exhausted, Invalid
from tieredstore.jobs.journal import Journal, journal_path

IDENTITY: dict[str, object] = {"job": "test", "tier": "file:///a", "queues": [1, 2]}


@dataclass
class Outcome:
    count: int
    data: bytes
    parts: list[tuple[int, str]]


OUTCOME = Outcome(3, b"\x00\xff", [(1, "a\nb\r\u2028"), (2, "")])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs" / "journal.jsonl"


def test_a_journal_that_cannot_be_made_or_written_names_its_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.write_text("a file")
    with pytest.raises(Invalid, match=f"{path.parent}: cannot create: File exists"):
        Journal(path, IDENTITY)
    path.parent.unlink()
    with Journal(path, IDENTITY) as journal:

        def refuse(*_: object) -> int:
            raise OSError(errno.ENOSPC, "no room")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", refuse)
            with pytest.raises(Exhausted, match=f"{path}: cannot write: No space left on device"):
                journal.record("a step", OUTCOME)


def test_steps_are_there_again_as_what_they_were(path: Path) -> None:
    with Journal(path, IDENTITY) as journal:
        journal.record("a step", OUTCOME)
        journal.record("nothing", None)
        assert journal.outcome("a step", Outcome) == OUTCOME
    with Journal(path, IDENTITY) as journal:
        assert journal.steps == 2
        assert "a step" in journal
        assert "another" not in journal
        assert journal.outcome("a step", Outcome) == OUTCOME
        assert journal.outcome("nothing", type(None)) is None


def test_without_a_path_nothing_is_kept() -> None:
    with Journal(None, IDENTITY) as journal:
        journal.record("a", 1)
        assert journal.outcome("a", int) == 1
        journal.finish()
        assert "a" not in journal


def test_a_torn_line_was_never_counted_at_whatever_byte(path: Path) -> None:
    with Journal(path, IDENTITY) as journal:
        journal.record("first", 1)
        journal.record("second", OUTCOME)
    whole = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 10]
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with Journal(path, IDENTITY) as journal:
            assert journal.steps == sum(cut >= end for end in ends[1:])
            journal.record("third", 3)
        with Journal(path, IDENTITY) as journal:
            assert journal.outcome("third", int) == 3


def test_the_journal_of_another_job_is_refused(path: Path) -> None:
    with Journal(path, IDENTITY) as journal:
        journal.record("a", 1)
    with pytest.raises(Invalid, match="belongs to another job"):
        Journal(path, {**IDENTITY, "tier": "file:///b"})
    with Journal(path, IDENTITY) as journal:
        assert "a" in journal


@pytest.mark.parametrize("line", [b"text\n", b"[1]\n", b"7\n", b'["a"]\n'])
def test_what_is_no_journal_is_refused_with_advice(path: Path, line: bytes) -> None:
    Journal(path, IDENTITY).close()
    with path.open("ab") as file:
        file.write(line)
    with pytest.raises(Invalid, match="emove it to start from the beginning"):
        Journal(path, IDENTITY)


def test_an_outcome_of_another_kind_is_refused_with_advice(path: Path) -> None:
    with Journal(path, IDENTITY) as journal:
        journal.record("a", {"count": "many"})
        with pytest.raises(Invalid, match=r"step 'a'.*emove it to start from the beginning"):
            journal.outcome("a", Outcome)


def test_a_finished_job_begins_anew(path: Path) -> None:
    with Journal(path, IDENTITY) as journal:
        journal.record("a", 1)
        journal.finish()
        journal.finish()
    assert not path.exists()
    with Journal(path, IDENTITY) as journal:
        assert journal.steps == 0


def _hold(path: Path, held: object, done: object) -> None:
    with Journal(path, IDENTITY):
        held.set()  # type: ignore[attr-defined]
        done.wait(30)  # type: ignore[attr-defined]


def test_two_processes_do_not_do_the_same_job(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(path, held, done))
    process.start()
    try:
        assert held.wait(30)
        with pytest.raises(Busy, match="running in another process"):
            Journal(path, IDENTITY)
    finally:
        done.set()
        process.join(30)
    assert process.exitcode == 0
    Journal(path, IDENTITY).close()


def test_a_journal_that_is_removed_while_it_is_opened_is_not_taken_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Journal(path, IDENTITY)
    first.record("a", 1)
    really_open = os.open

    def open_late(*arguments: object, **options: object) -> int:
        file = really_open(*arguments, **options)  # type: ignore[arg-type]
        monkeypatch.setattr(os, "open", really_open)
        first.finish()  # the other run ends in between
        first.close()
        return file

    monkeypatch.setattr(os, "open", open_late)
    with Journal(path, IDENTITY) as second:
        assert second.steps == 0
        second.record("b", 2)
    with Journal(path, IDENTITY) as third:
        assert third.steps == 1


def test_a_write_that_takes_a_part_is_gone_on_with(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: really_write(file, bytes(data)[:7]))
    with Journal(path, IDENTITY) as journal:
        journal.record("a", OUTCOME)
    monkeypatch.undo()
    with Journal(path, IDENTITY) as journal:
        assert journal.outcome("a", Outcome) == OUTCOME


def test_the_same_job_finds_its_journal_another_one_does_not(tmp_path: Path) -> None:
    same: dict[str, object] = {"queues": [1, 2], "tier": "file:///a", "job": "test"}
    assert journal_path(tmp_path, IDENTITY) == journal_path(tmp_path, same)
    assert journal_path(tmp_path, IDENTITY).name.startswith("test-")
    others: list[dict[str, object]] = [
        {**IDENTITY, "queues": [2, 1]},
        {**IDENTITY, "job": "other"},
    ]
    for other in others:
        assert journal_path(tmp_path, IDENTITY) != journal_path(tmp_path, other)


def test_a_run_that_was_refused_before_its_first_step_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "work" / "journal"
    with pytest.raises(Invalid), Journal(path, {"job": "test"}):
        raise Invalid("no such topic")
    assert list(tmp_path.iterdir()) == []
    path.parent.mkdir()
    with pytest.raises(Invalid), Journal(path, {"job": "test"}):
        raise Invalid("no such topic")
    assert list(path.parent.iterdir()) == [], "the folder was there before"
    with pytest.raises(Invalid), Journal(path, {"job": "test"}) as journal:
        fail_after_a_step(journal)
    assert path.exists()
    path.unlink()
    with pytest.raises(Invalid), Journal(path, {"job": "test"}):
        replace_and_fail(path)
    assert path.exists()


def fail_after_a_step(journal: Journal) -> None:
    journal.record("step", 1)
    raise Invalid("refused later")


def replace_and_fail(path: Path) -> None:
    path.unlink()
    path.write_text("another process's by now")
    raise Invalid("no such topic")


def test_a_journal_that_begins_anew_has_no_step_and_the_same_job(path: Path) -> None:
    with Journal(path, IDENTITY) as journal:
        journal.record("a", OUTCOME)
        journal.record("b", 2)
        assert list(journal) == ["a", "b"]
        journal.begin_anew()
        assert list(journal) == []
        journal.record("c", 3)
    with Journal(path, IDENTITY) as journal:
        assert list(journal) == ["c"]
    with Journal(None, IDENTITY) as journal:
        journal.record("a", 1)
        journal.begin_anew()
        assert journal.steps == 0
