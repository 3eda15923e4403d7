"""The tests run `tieredstore doctor` in a shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.command_line import files_of, one_line, tieredstore
from tests.kit.tier_builder import small_tier


def test_a_tier_on_files_is_looked_at_and_left_as_it_was(tmp_path: Path) -> None:
    built = small_tier(tmp_path / "source")
    before = files_of(built.root)
    ran = tieredstore("doctor", "--tier", built.url, "--output", "json")
    assert ran.code == 0, ran.out
    assert ran.record["safe"] is True
    assert ran.record["tier"] == built.url
    probes = {row["probe"]: row for row in ran.record["probes"]}
    assert {"lock", "sync", "rename", "free space", "throughput"} <= probes.keys()
    assert set(probes["lock"]) == {"probe", "verdict", "found", "meaning"}
    assert files_of(built.root) == before


def test_a_table_says_at_its_end_whether_it_is_safe(tmp_path: Path) -> None:
    ran = tieredstore("doctor", "--tier", f"file://{tmp_path}", "--no-throughput")
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == f"file://{tmp_path}: it is safe to write there"
    assert "throughput" not in ran.out


def test_o11_what_is_not_safe_has_an_exit_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda fd, how: None)
    ran = tieredstore("doctor", "--tier", f"file://{tmp_path}")
    assert ran.code == 7
    assert "unsafe: lock: a second writer could not be kept out" in ran.out
    assert ran.out.splitlines()[-1].endswith("it is NOT safe to write there")


def test_h01_a_place_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    ran = tieredstore("doctor", "--tier", f"file://{tmp_path}/absent")
    assert ran.code == 2
    assert "cannot write in" in one_line(ran)
    assert not (tmp_path / "absent").exists()
