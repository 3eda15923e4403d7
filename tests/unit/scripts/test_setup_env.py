"""Tests of setting up a clone's environment: the packages for each script, and repeated runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import setup_env


class Clone:
    """A clone that records installations instead of performing them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.installed: list[str] = []
        self.made = 0
        self.fails = False
        self.fingerprint = "now\n/usr/bin/python3.11\n/clone\n"
        self._monkeypatch = monkeypatch
        patches = {
            "ROOT": folder,
            "VENV": folder / ".venv",
            "make_venv": self._make,
            "install": self._install,
            "succeeds": lambda *_: True,
            "fingerprint": lambda: self.fingerprint,
        }
        for name, value in patches.items():
            monkeypatch.setattr(setup_env, name, value)

    def _make(self) -> None:
        self.made += 1
        (setup_env.VENV / "bin").mkdir(parents=True, exist_ok=True)
        (setup_env.VENV / "bin" / "python").touch()

    def _install(self, python: Path, extras: str) -> None:
        if self.fails:
            raise KeyboardInterrupt
        self.installed.append(extras)

    def set_up(self, extras: str) -> list[str]:
        """Return the packages installed for these extras."""
        self.installed.clear()
        self._monkeypatch.setattr("sys.argv", ["setup_env.py", extras])
        setup_env.main()
        return list(self.installed)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    return Clone(tmp_path, monkeypatch)


def test_each_kind_is_installed_once_and_none_undoes_another(clone: Clone) -> None:
    kinds = ("core", "s3-server", "tables", "spark")
    for kind in kinds:
        assert clone.set_up(kind) == [setup_env.EXTRAS[kind]]
    for kind in kinds:
        assert clone.set_up(kind) == []
    assert clone.made == 1


@pytest.mark.parametrize("first", ["s3-server", "tables", "spark", "dev"])
def test_every_kind_holds_what_it_is_made_of_and_dev_holds_all(clone: Clone, first: str) -> None:
    clone.set_up(first)
    assert clone.set_up("core") == []
    assert bool(clone.set_up("tables")) == (first == "s3-server")
    clone.set_up("tables")
    assert bool(clone.set_up("s3-server")) == (first in {"tables", "spark"})
    assert bool(clone.set_up("spark")) == (first in {"s3-server", "tables"})


def test_an_environment_of_another_place_or_interpreter_is_made_anew(clone: Clone) -> None:
    clone.set_up("core")
    clone.fingerprint = "other\n/usr/bin/python3.12\n/elsewhere\n"
    clone.set_up("core")
    assert clone.made == 2
    clone.fingerprint = "changed\n/usr/bin/python3.12\n/elsewhere\n"
    assert clone.set_up("core") == ["broker,s3"]
    assert clone.made == 2


def test_without_a_terminal_downloads_are_told_and_failures_whole(
    capfd: pytest.CaptureFixture[str],
) -> None:
    lines = "Collecting a", "Downloading a-1.whl (9 MB)", "ERROR: no space"
    command = ["sh", "-c", f"printf '%s\n' {' '.join(map(repr, lines))}; exit 3"]
    assert setup_env.run_installer(command) == 3
    said = capfd.readouterr().err.splitlines()
    assert said == ["setup: Downloading a-1.whl (9 MB)", *lines]
    command[-1] = command[-1].replace("exit 3", "exit 0")
    assert setup_env.run_installer(command) == 0
    assert capfd.readouterr().err == "setup: Downloading a-1.whl (9 MB)\n"


def test_an_installation_that_was_cut_off_counts_for_nothing(clone: Clone) -> None:
    clone.set_up("core")
    clone.fails = True
    with pytest.raises(KeyboardInterrupt):
        clone.set_up("spark")
    clone.fails = False
    assert clone.set_up("core") == ["broker,s3"]
    assert clone.made == 2


def test_the_demos_environment_has_what_the_examples_of_the_readme_need() -> None:
    needed = {"broker", "s3", "jobs", "pandas", "duckdb", "polars", "iceberg", "delta"}
    assert needed <= set(setup_env.EXTRAS["tables"].split(","))
    assert {*needed, "spark"} <= set(setup_env.EXTRAS["spark"].split(","))


@pytest.mark.parametrize("failing", [None, "pyspark", ".venv-of-the-clone"])
def test_pyspark_is_installed_beside_the_rest(
    monkeypatch: pytest.MonkeyPatch, failing: str | None
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], *, shows_progress: bool = True) -> int:
        commands.append(command)
        assert shows_progress == ("--editable" in command), "two would write over each other"
        is_pyspark = command[-1] == "pyspark"
        return int(failing is not None and is_pyspark == (failing == "pyspark"))

    monkeypatch.setattr(setup_env, "installer", lambda _: ["install"])
    monkeypatch.setattr(setup_env, "run_installer", run)
    if failing is None:
        setup_env.install(Path("python"), setup_env.EXTRAS["spark"])
    else:
        with pytest.raises(SystemExit):
            setup_env.install(Path("python"), setup_env.EXTRAS["spark"])
    constraint = ["--constraint", str(setup_env.CONSTRAINTS)]
    clone = f"{setup_env.ROOT}[{setup_env.EXTRAS['tables']}]"
    assert sorted(commands) == [
        ["install", *constraint, "--editable", clone], ["install", *constraint, "pyspark"],
    ]  # fmt: skip


def test_other_kinds_are_installed_by_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(setup_env, "installer", lambda _: [])

    def run(command: list[str]) -> int:
        commands.append(command)
        return 0

    monkeypatch.setattr(setup_env, "run_installer", run)
    for extras in ("broker,s3", "dev", "spark-jdk"):
        setup_env.install(Path("python"), extras)
        assert commands.pop()[-2:] == ["--editable", f"{setup_env.ROOT}[{extras}]"]
        assert not commands
