"""Journals of interrupted jobs can be listed, dropped, and deleted by age."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.kit.tier_builder import BuiltTier, small_tier
from tieredstore import jobs
from tieredstore.cli.main import run as tieredstore_command
from tieredstore.clock import ManualClock
from tieredstore.disk.locks import lock_file
from tieredstore.errors import Busy, Invalid, Unavailable
from tieredstore.jobs.journal import Journal, journal_path
from tieredstore.jobs.journals import (
    DAY_MS,
    DEFAULT_KEEP_DAYS,
    EXPIRING,
    KEEP_VARIABLE,
    find_journals,
    forget_journal,
    forget_old_journals,
    keep_days,
    list_journals,
    staging_beside,
)
from tieredstore.jobs.options import RunOptions
from tieredstore.jobs.runner import LocalRunner
from tieredstore.jobs.start import start_run
from tieredstore.jobs.stopping import Stopped, StopSignal

NOW_MS = 1_700_000_000_000


def keep(folder: Path, job: str, age_days: float = 0, **arguments: object) -> Path:
    """Create an abandoned journal with two steps and the given age."""
    identity: dict[str, object] = {"job": job, **arguments}
    path = journal_path(folder, identity)
    with Journal(path, identity) as journal:
        journal.record("pin", [1])
        journal.record("write:0", "x" * 100)
    set_age(path, age_days)
    return path


def set_age(path: Path, age_days: float) -> None:
    time_ns = int((NOW_MS - age_days * DAY_MS) * 1_000_000)
    os.utime(path, ns=(time_ns, time_ns))


def stage(path: Path) -> None:
    folder = staging_beside(path) / "files"
    folder.mkdir(parents=True)
    (folder / "one").write_bytes(b"y" * 1000)


def test_the_oldest_comes_first_with_its_size_and_what_it_is_of(tmp_path: Path) -> None:
    new = keep(tmp_path, "export", 1, target="lake", to="lake", tier="file:///a")
    old = keep(tmp_path, "rebuild-index", 3, tier="file:///a")
    stage(old)
    (tmp_path / "notes.jsonl").write_text("somebody's own\n")
    (tmp_path / "export-0123456789abcdef.txt").write_text("somebody's own\n")
    first, second = list_journals(tmp_path)
    assert (first.path, first.job, first.target) == (old, "rebuild-index", "file:///a")
    assert (second.path, second.job, second.target) == (new, "export", "lake")
    assert first.size_bytes == old.stat().st_size + 1000
    assert second.size_bytes == new.stat().st_size
    assert second.steps == 2
    assert second.changed_ms == NOW_MS - DAY_MS
    assert (first.expires, second.expires) == (False, True)
    assert list_journals(tmp_path / "nowhere") == []


@pytest.mark.parametrize("data", [b"", b"\xff\n", b"7\n", b'{"job": 1}\n', b'["a"]\n'])
def test_a_damaged_journal_is_listed_all_the_same(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "export-0123456789abcdef.jsonl"
    path.write_bytes(data)
    [found] = list_journals(tmp_path)
    assert (found.name, found.job, found.target, found.steps) == (path.stem, "export", "", 0)
    assert forget_journal(path)


def test_a_running_job_is_told_and_keeps_its_journal(tmp_path: Path) -> None:
    path = keep(tmp_path, "export", DEFAULT_KEEP_DAYS + 1)
    with Journal(path, {"job": "export"}):
        set_age(path, DEFAULT_KEEP_DAYS + 1)
        assert [found.is_running for found in list_journals(tmp_path)] == [True]
        with pytest.raises(Busy, match="Stop it first"):
            forget_journal(path)
        assert forget_old_journals(tmp_path, 1, clock=ManualClock(NOW_MS)) == []
    assert [found.is_running for found in list_journals(tmp_path)] == [False]
    assert forget_journal(path)
    assert not forget_journal(path)
    assert list(tmp_path.iterdir()) == []


def test_a_look_at_a_journal_keeps_no_job_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of a journal does not prevent a job from starting."""
    tries = list[Path]()

    def held_once(path: Path, mode: int) -> int:
        tries.append(path)
        if len(tries) == 1:
            raise BlockingIOError
        return lock_file(path, mode)

    monkeypatch.setattr("tieredstore.jobs.journal.lock_file", held_once)
    keep(tmp_path, "export")
    assert len(tries) == 2


def test_what_is_staged_goes_with_its_journal(tmp_path: Path) -> None:
    path, other = keep(tmp_path, "rebuild-index"), keep(tmp_path, "export")
    stage(path)
    assert forget_journal(path)
    assert list(tmp_path.iterdir()) == [other]


def test_a_name_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    path = keep(tmp_path, "export")
    assert [found.path for found in find_journals(tmp_path, [path.stem, path.stem])] == [path]
    with pytest.raises(Invalid, match=rf"no journal 'export-1'. It has: {path.stem}"):
        find_journals(tmp_path, ["export-1"])


@pytest.mark.parametrize(
    "job", [*sorted(EXPIRING), "backfill", "compact-index", "rebuild-index", "rebuild-metadata"]
)
def test_old_ones_go_where_nothing_but_time_is_lost(tmp_path: Path, job: str) -> None:
    clock = ManualClock(NOW_MS)
    old, young = keep(tmp_path, job, 30.01, to="a"), keep(tmp_path, job, 29.99, to="b")
    own = keep(tmp_path, job, 40, to="c")
    gone = forget_old_journals(tmp_path, 30, but=own, clock=clock)
    assert gone == ([old] if job in EXPIRING else [])
    assert young.exists()
    assert own.exists()
    assert forget_old_journals(tmp_path, 0, clock=clock) == []


def test_how_long_they_are_kept_is_one_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, days in (("", DEFAULT_KEEP_DAYS), ("7", 7), (" 0 ", 0)):
        monkeypatch.setenv(KEEP_VARIABLE, given)
        assert keep_days() == days
    for given in ("-1", "1d", "1.5", "x"):
        monkeypatch.setenv(KEEP_VARIABLE, given)
        with pytest.raises(
            Invalid, match=f"{KEEP_VARIABLE}: expected a number of days, 0 for ever"
        ):
            keep_days()


class Failing(LocalRunner):
    """Runner that runs the first task and then raises Unavailable."""

    def run(self, work: Any, tasks: Any, on_done: Any) -> None:
        super().run(work, tasks[:1], on_done)
        raise Unavailable("planted")


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltTier:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    return small_tier(tmp_path / "built")


def test_a_job_that_ends_early_names_its_journal_and_so_does_the_one_that_goes_on(
    tier: BuiltTier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    to = tmp_path / "report"
    with pytest.raises(Unavailable) as failed:
        jobs.report(tier.url, to, runner=Failing())
    [journal] = list_journals(tmp_path / "home" / "tieredstore" / "jobs")
    [note] = failed.value.__notes__
    hint = f"journal {journal.path}, `tieredstore jobs forget {journal.name} --yes` drops it"
    told = f"report: {journal.steps} steps done, the same command continues"
    assert note == f"{told}: {hint}"
    assert journal.steps == 2
    with caplog.at_level(logging.WARNING, "tieredstore"):
        jobs.report(tier.url, to)
    [line] = caplog.messages
    assert line.startswith("report: continues after 2 steps of a run that ended at 2")
    assert line.endswith(hint)


def test_one_step_is_one_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def do_one_step() -> None:
        with start_run("verify", {}, RunOptions(work=tmp_path)) as run:
            run.journal.record("pin", {})
            raise Unavailable("gone")

    with pytest.raises(Unavailable) as failed:
        do_one_step()
    assert failed.value.__notes__[0].startswith("verify: 1 step done, the same command")
    with (
        caplog.at_level(logging.WARNING, "tieredstore"),
        start_run("verify", {}, RunOptions(work=tmp_path)),
    ):
        pass
    assert caplog.messages[0].startswith("verify: continues after 1 step of a run that ended at 2")


def test_a_stop_and_a_folder_of_ones_own_are_told(tier: BuiltTier, tmp_path: Path) -> None:
    work, stop = tmp_path / "my work", StopSignal()

    class Stopping(LocalRunner):
        def run(self, work: Any, tasks: Any, on_done: Any) -> None:
            stop.set()
            super().run(work, tasks, on_done)

    with pytest.raises(Stopped) as stopped:
        jobs.verify(tier.url, work=work, runner=Stopping(), stop=stop)
    [journal] = list_journals(work)
    assert f"`tieredstore jobs forget {journal.name} --work '{work}' --yes`" in str(
        stopped.value.__notes__
    )


def test_without_a_step_or_a_journal_nothing_is_told(tier: BuiltTier, tmp_path: Path) -> None:
    with pytest.raises(Invalid) as refused:
        jobs.export(tier.url, tmp_path / "lake", topics="typo_*")
    with pytest.raises(Unavailable) as failed:
        jobs.verify(tier.url, runner=Failing())
    assert not hasattr(refused.value, "__notes__")
    assert not hasattr(failed.value, "__notes__")


def test_old_journals_of_the_user_go_when_a_job_begins(
    tier: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, work = tmp_path / "home" / "tieredstore" / "jobs", tmp_path / "work"
    monkeypatch.setenv(KEEP_VARIABLE, "0")
    old, elsewhere = keep(users, "export", 100), keep(work, "export", 100)
    jobs.report(tier.url, tmp_path / "report")
    assert old.exists()
    monkeypatch.setenv(KEEP_VARIABLE, "99")
    jobs.report(tier.url, tmp_path / "report", work=work)
    assert old.exists()
    jobs.report(tier.url, tmp_path / "report")
    assert not old.exists()
    assert elsewhere.exists(), "a folder of the user's own is left alone"


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str]:
    assert tieredstore_command(["jobs", *arguments, "--output", "json"]) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_the_verbs_list_say_and_forget(
    tier: BuiltTier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = tmp_path / "home" / "tieredstore" / "jobs"
    paths = [keep(users, "backfill", 3, table="t"), keep(users, "export", 2, to="a")]
    rows, _ = show(capsys, "list")
    assert [row["path"] for row in rows] == [str(path) for path in paths]
    assert [(row["target"], row["expires"]) for row in rows] == [("t", False), ("a", True)]
    rows, told = show(capsys, "forget", paths[1].stem)
    assert [(row["journal"], row["forgotten"]) for row in rows] == [(paths[1].stem, False)]
    assert "pass --yes to do it" in told
    assert paths[1].exists()
    rows, told = show(capsys, "forget", paths[1].stem, "--yes")
    assert ([row["forgotten"] for row in rows], told) == ([True], "")
    assert not paths[1].exists()
    with Journal(paths[0], {"job": "backfill", "table": "t"}):
        assert show(capsys, "forget", "--all", "--yes")[0] == []
        assert tieredstore_command(["jobs", "forget", paths[0].stem, "--yes"]) == 6
    capsys.readouterr()
    set_age(paths[0], 0)
    fresh = keep(users, "export", to="b")
    os.utime(fresh)
    assert len(show(capsys, "forget", "--older-than", "1h", "--yes")[0]) == 1
    assert fresh.exists()
    assert len(show(capsys, "forget", "--all", "--yes")[0]) == 1
    assert show(capsys, "list")[0] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the names of journals, or --all, or --older-than"),
        (["a", "--all"], "give the names of journals, or --all, or --older-than"),
        (["--older-than", "soon"], "--older-than: expected a time such as 30s, 12h, 30d or 4w"),
        (["export-1"], "no journal 'export-1'. It has: none"),
    ],
)
def test_what_cannot_be_forgotten_is_told(
    arguments: list[str], message: str, tier: BuiltTier, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tieredstore_command(["jobs", "forget", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_command_prints_the_note_in_front_of_the_error(
    tier: BuiltTier,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tieredstore.jobs.start.LocalRunner", Failing)
    report = ["report", "--tier", tier.url, "--to", str(tmp_path / "report"), "--quiet"]
    assert tieredstore_command([*report, "--workers", "1"]) == 4
    note, error = capsys.readouterr().err.splitlines()
    [journal] = list_journals(tmp_path / "home" / "tieredstore" / "jobs")
    assert note.startswith("tieredstore: report: 2 steps done, the same command continues")
    assert f"journal {journal.path}," in note
    assert error == "tieredstore: error: planted. Try again."
