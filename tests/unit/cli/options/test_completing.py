"""Tests of shell completions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.paths import ROOT
from tests.kit.tier_builder import BuiltTier, small_tier
from tieredstore import jobs
from tieredstore.cli.main import VERBS, cli, run
from tieredstore.cli.options import completing
from tieredstore.cli.options.completing import find_topics, look_in_time
from tieredstore.cli.options.tier import TierOptions


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("completing"))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limit for completions, because the machine may be busy. Keep logging enabled
    for later tests."""
    monkeypatch.setattr("logging.disable", lambda: None)
    monkeypatch.setattr(completing, "LIMIT_SECONDS", 1e9)


def offered(*words: str) -> list[str]:
    """Return the completions for a command line whose last word is incomplete."""
    from click.shell_completion import ShellComplete

    *args, incomplete = words
    found = ShellComplete(cli, {}, "tieredstore", "X").get_completions(args, incomplete)
    return [item.value for item in found]


def test_verbs_and_their_parts_are_offered_without_an_import_of_all() -> None:
    assert offered("") == list(VERBS)
    assert offered("co") == ["compact", "completion", "config", "copy"]
    assert offered("rebuild", "") == ["index", "metadata"]
    assert "--tier" in offered("cat", "--t")


@pytest.mark.parametrize("verb", ["cat", "ls", "query", "stat", "verify"])
def test_topics_of_the_tier_are_offered(tier: BuiltTier, verb: str) -> None:
    assert offered(verb, "--tier", tier.url, "--topic", "") == ["orders", "over6"]
    assert offered(verb, "--tier", tier.url, "--topic", "ord") == ["orders"]
    assert offered(verb, f"--tier={tier.url}", "--topic=ov") == ["over6"]


def test_topics_of_the_tier_of_the_environment_are_offered(
    tier: BuiltTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIEREDSTORE_TIER", str(tier.root / "tier"))
    assert offered("cat", "--topic", "") == ["orders", "over6"]
    assert offered("copy", "--topics", "") == []


@pytest.mark.parametrize(
    ("verb", "flag"), [("export", "--tier"), ("copy", "--from"), ("offload", "--tier")]
)
def test_a_list_of_topics_goes_on_behind_the_comma(tier: BuiltTier, verb: str, flag: str) -> None:
    assert offered(verb, flag, tier.url, "--topics", "x,ov") == ["x,over6"]


def test_a_state_directory_says_it_without_a_look_at_the_tier(tier: BuiltTier) -> None:
    found = offered("cat", "--tier", "s3://nowhere/x", "--state", str(tier.state), "--topic", "")
    assert found == ["orders", "over6"]


def test_any_other_tier_is_listed(tier: BuiltTier, tmp_path: Path) -> None:
    url = f"fsspec+file://{tmp_path}/copy?fencing=none"
    jobs.copy(tier.url, url, to_state=tmp_path / "state")
    assert set(find_topics(TierOptions(url))) == {"orders", "over6"}


@pytest.mark.parametrize(
    "words",
    [
        ("cat", "--topic", ""),
        ("cat", "--tier", "file:///nowhere/at/all", "--topic", ""),
        ("cat", "--tier", "what is this", "--topic", ""),
        ("cat", "--tier", "ftp://x", "--topic", ""),
        ("cat", "--tier", "file:///x", "--state", "/nowhere", "--topic", ""),
    ],
)
def test_where_nothing_is_known_nothing_is_offered_or_told(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert offered(*words) == []
    assert capfd.readouterr() == ("", "")


def ask(folder: Path, seconds: float, *words: object) -> tuple[int, str, str]:
    """Return the command's reply to bash."""
    program = (
        f"from tieredstore.cli.options import completing\ncompleting.LIMIT_SECONDS = {seconds}\n"
        "from tieredstore.cli.main import main\nmain()\n"
    )
    environment = {
        "COMP_WORDS": " ".join(map(str, words)),
        "COMP_CWORD": str(len(words) - 1),
        "_TIEREDSTORE_COMPLETE": "bash_complete",
        "HOME": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout.strip(), done.stderr


def test_what_takes_too_long_is_given_up_whatever_it_waits_for(
    tier: BuiltTier, tmp_path: Path
) -> None:
    config = tmp_path / "state" / "config"
    config.mkdir(parents=True)
    os.mkfifo(config / "tieredStoreMetadata.json")  # opening it would block for ever
    words = ("tieredstore", "cat", "--tier", tier.url)
    code, out, err = ask(tmp_path, 3, *words, "--state", tmp_path / "state", "--topic", "o")
    assert (code, out, err) == (1, "", "")
    assert ask(tmp_path, 60, *words, "--topic", "o") == (0, "plain,orders\nplain,over6", "")


def test_where_the_start_took_all_the_time_there_is_no_look(
    tier: BuiltTier, tmp_path: Path
) -> None:
    words = ("tieredstore", "cat", "--tier", tier.url)
    assert ask(tmp_path, 0, *words, "--topic", "o") == (0, "", "")
    assert ask(tmp_path, 0, *words, "--to")[1].startswith("plain,--topic")


def test_a_look_gives_names_once_and_in_order() -> None:
    assert look_in_time(lambda: ["b", "a", "b"]) == ["a", "b"]


SCRIPTS = {
    "bash": "source {script}; COMP_WORDS=(tieredstore cat --tier {tier} --topic ov); COMP_CWORD=5; "
    '_tieredstore_completion tieredstore; echo "${{COMPREPLY[*]}}"',
    "fish": "source {script}; complete --do-complete 'tieredstore cat --tier {tier} --topic ov'",
}


@pytest.mark.parametrize("shell", [shell for shell in SCRIPTS if shutil.which(shell)])
def test_a_shell_completes_a_topic(tier: BuiltTier, tmp_path: Path, shell: str) -> None:
    program = str(shutil.which(shell))
    command = tmp_path / "bin" / "tieredstore"
    command.parent.mkdir()
    # It has the time that it needs here.
    command.write_text(
        f"#!{sys.executable}\nfrom tieredstore.cli.options import completing\n"
        "completing.LIMIT_SECONDS = 60\nfrom tieredstore.cli.main import main\nmain()\n"
    )
    command.chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    script = tmp_path / "script"
    with script.open("w") as file:
        subprocess.run([command, "completion", shell], stdout=file, env=environment, check=True)
    asked = SCRIPTS[shell].format(script=script, tier=tier.url)
    done = subprocess.run(
        [program, "-c", asked], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("over6\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert f"_TIEREDSTORE_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_an_unknown_shell_is_told_with_those_that_are_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["completion", "tcsh"]) == 2
    assert "'bash', 'zsh', 'fish'" in capsys.readouterr().err
