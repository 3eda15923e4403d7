"""Tests of `scripts/demo`: its arguments, the folders it empties, and the broker it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.demonstration.arguments import MARK, Options, parse
from scripts.demonstration.broker import MESSAGES, play
from scripts.demonstration.commands import show_command
from scripts.demonstration.folder import prepare
from scripts.demonstration.steps import explain_rest
from tests.kit.paths import ROOT
from tieredstore.config import StoreConfig


def options_for(folder: Path, *words: object) -> Options:
    return parse(["--folder", str(folder), *map(str, words)])


def refusal(capsys: pytest.CaptureFixture[str], folder: Path, *words: object) -> str:
    with pytest.raises(SystemExit) as ended:
        options_for(folder, *words)
    assert ended.value.code == 2
    return capsys.readouterr().err


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    return tmp_path / "store"


def test_arguments_are_checked_before_anything_is_touched(
    tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, other = tmp_path / "demo", tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").touch()
    (tmp_path / "file").touch()
    assert "not made by this script" in refusal(capsys, other)
    assert "found a file" in refusal(capsys, tmp_path / "file")
    assert "belong to a --store" in refusal(capsys, folder, "--broker", "b")
    assert "commitlog/" in refusal(capsys, folder, "--store", other)
    assert "--broker and --cluster" in refusal(capsys, folder, "--store", store, "--broker", "b")
    missing = refusal(capsys, folder, "--store", store, "--config", tmp_path / "no.conf")
    assert "no such file" in missing
    (tmp_path / "broker.conf").touch()
    assert str(store / ".." / "broker.conf") in refusal(capsys, folder, "--store", store)
    assert "unrecognized arguments" in refusal(capsys, folder, "--sparkle")
    assert not folder.exists()
    assert names(other) == {"mine.txt"}


def test_a_store_that_the_demo_would_empty_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo"
    prepare(options_for(folder))
    (folder / "tier" / "store" / "commitlog").mkdir(parents=True)
    given = ("--broker", "b", "--cluster", "c")
    said = refusal(capsys, folder, "--store", folder / "tier" / "store", *given)
    assert "which this script empties" in said
    # The bundled store may be given as one of one's own: nothing else is unpacked over it.
    bundled = folder / "java-broker" / "public-a" / "store"
    (bundled / "commitlog").mkdir(parents=True)
    prepare(options_for(folder, "--store", bundled, *given))
    assert (bundled / "commitlog").exists()


def test_it_is_help_or_an_environment_that_any_python_is_told(tmp_path: Path) -> None:
    program = ROOT / "scripts" / "demonstration" / "arguments.py"

    def told(*words: str) -> str:
        # -S: without the packages of any environment.
        command = [sys.executable, "-S", "-E", str(program), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
        return done.stdout

    assert told() == "spark\n"
    assert told("--no-spark") == "tables\n"
    assert "usage: scripts/demo" in told("--help")


def test_only_what_the_demo_made_goes_before_it_starts_again(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    options = options_for(folder)
    assert prepare(options) == []
    assert names(folder) == {MARK}
    for name in options.made:
        (folder / name).mkdir()
        (folder / name / "old").touch()
    (folder / "parquet").mkdir()
    (folder / "parquet" / "mine.parquet").touch()
    kept = options_for(folder, "--keep")
    assert prepare(kept) == ["parquet"]
    assert names(folder) == {MARK, "parquet", *options.made}
    assert prepare(options) == ["parquet"]
    assert names(folder) == {MARK, "parquet"}
    assert (folder / "parquet" / "mine.parquet").exists()


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    options = options_for(tmp_path / "demo")
    prepare(options)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").touch()
    (options.folder / "tier").symlink_to(tmp_path / "elsewhere")
    prepare(options)
    assert names(options.folder) == {MARK}
    assert (tmp_path / "elsewhere" / "mine").exists()


def test_what_is_in_no_tier_is_counted_and_explained() -> None:
    topics = [
        {"topic": "%LMQ%one", "messages": 4},
        {"topic": "SCHEDULE_TOPIC_XXXX", "messages": 2},
        {"topic": "orders", "messages": 1_000},
    ]
    said = explain_rest(topics, StoreConfig())
    assert "has 1,002 messages; 1,000 of them go into a tier" in said
    assert "The other 2 are" in said
    assert "2 of SCHEDULE_TOPIC_XXXX" in said
    assert "The 4 entries of light queues" in said
    assert explain_rest(topics[2:], StoreConfig()).count("\n") == 0


def test_commands_are_shown_as_one_types_them_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")
    show_command(tmp_path / "a b" / "run", "--tier", tmp_path / "tier", "--key", "k" * 20)
    shown = capsys.readouterr().out
    assert shown == f"\n$ 'a b/run' --tier tier \\\n    --key {'k' * 20}\n"


def test_what_is_sent_is_consumed_and_replayed_from_the_tier(tmp_path: Path) -> None:
    played = play(tmp_path)
    assert played.sent == played.consumed == played.uploaded == played.replayed == MESSAGES
