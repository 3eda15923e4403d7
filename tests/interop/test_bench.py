"""`scripts/bench` runs its comparisons. The tests do not check the measured figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kit.java import JavaTools
from tests.kit.paths import ROOT


def bench(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--pairs", "1", "--json", str(out)]
    command += ["--folder", str(tmp_path), *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(out.read_bytes())
    return found


def test_a_row_has_both_sides_and_names_its_face_durability_and_pull(
    java: JavaTools, tmp_path: Path
) -> None:
    found = bench(tmp_path, "--only", "index-put")
    (row,) = found["rows"]
    assert len(row["ours"]) == len(row["java"]) == 1
    assert row["ours"][0]["count"] == row["java"][0]["count"] > 0
    assert row["figures"][0]["ratio"] > 0
    assert all(row[name] for name in ("face", "durability", "pull"))
    assert found["environment"]["java"]["rocketmq"] == "5.5.0"


def test_our_side_of_every_row_runs_without_java(tmp_path: Path) -> None:
    found = bench(tmp_path, "--no-java")
    assert {row["row"] for row in found["rows"]} > {"put", "upload", "read-store", "open"}
    for row in found["rows"]:
        assert row["error"] == "", row
        assert len(row["ours"]) == 1
        assert row["java"] == []
        assert row["ours"][0]["count"] > 0
