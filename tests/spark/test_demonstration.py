"""The Spark part of `scripts/demo` runs a program of `examples/` with the expected output."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.demonstration.spark import Counting
from tests.kit.tier_builder import small_tier


def test_it_counts_the_messages_of_each_topic_and_shows_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_tier(tmp_path / "it's")
    with Counting(tmp_path / "log") as counting:
        counting.begin(tmp_path / "it's" / "tier")
        counted = counting.show()
    assert counted == {"orders": 16, "over6": 6}, (tmp_path / "log").read_text()
    said = capsys.readouterr().out
    assert "examples/count_by_topic.py" in said
    assert "|orders|16      |2     |" in said


def test_a_failure_names_the_log(tmp_path: Path) -> None:
    with Counting(tmp_path / "log") as counting:
        counting.begin(tmp_path / "nothing")
        with pytest.raises(SystemExit, match="Its log is"):
            counting.show()
    assert "nothing" in (tmp_path / "log").read_text()


def test_a_demo_that_ends_early_leaves_no_session(tmp_path: Path) -> None:
    with Counting(tmp_path / "log") as counting:
        pass
    assert counting.process.returncode is not None
