"""Tests of the figures that `scripts/lint` compares with their limits."""

from __future__ import annotations

import pytest

from scripts import figures


def test_a_figure_above_its_limit_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    above = dict.fromkeys(figures.FIGURES, lambda: 10**9)
    monkeypatch.setattr(figures, "FIGURES", above)
    assert figures.main(["--check"]) == 1
    assert figures.main([]) == 0
    assert "own_keys: 1,000,000,000 of at most" in capsys.readouterr().out


def test_each_limit_has_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FIGURES", {"own_keys": figures.count_own_keys})
    with pytest.raises(SystemExit, match="any_uses"):
        figures.main([])


def test_figures_count_what_they_name() -> None:
    assert figures.count_own_keys() > 10
    assert figures.count_readme_words() > 100
    assert figures.count_package_lines() > figures.count_advise_lines() > 100
