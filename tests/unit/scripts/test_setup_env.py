"""The environment of a clone: what is installed for which script, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import setup_env


class Clone:
    """A clone whose installations are noted and not made."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.installed: list[str] = []
        self.made = 0
        self.fails = False
        self._monkeypatch = monkeypatch
        patches = {
            "ROOT": folder,
            "VENV": folder / ".venv",
            "make_venv": self._make,
            "install": self._install,
            "succeeds": lambda *_: True,
            "fingerprint": lambda: "now",
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
        """What was installed for that."""
        self.installed.clear()
        self._monkeypatch.setattr("sys.argv", ["setup_env.py", extras])
        setup_env.main()
        return list(self.installed)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    return Clone(tmp_path, monkeypatch)


def test_each_kind_is_installed_once_and_none_undoes_another(clone: Clone) -> None:
    assert clone.set_up("core") == ["broker,s3"]
    assert clone.set_up("s3-server") == ["broker,s3,s3-server"]
    assert clone.set_up("spark") == ["broker,s3,spark"]
    for extras in ("core", "s3-server", "spark"):
        assert clone.set_up(extras) == []
    assert clone.made == 1


@pytest.mark.parametrize("first", ["s3-server", "spark", "dev"])
def test_every_kind_holds_the_core_and_dev_holds_all(clone: Clone, first: str) -> None:
    clone.set_up(first)
    assert clone.set_up("core") == []
    assert bool(clone.set_up("s3-server")) == (first == "spark")
    assert bool(clone.set_up("spark")) == (first == "s3-server")


def test_an_installation_that_was_cut_off_counts_for_nothing(clone: Clone) -> None:
    clone.set_up("core")
    clone.fails = True
    with pytest.raises(KeyboardInterrupt):
        clone.set_up("spark")
    clone.fails = False
    assert clone.set_up("core") == ["broker,s3"]
    assert clone.made == 2
