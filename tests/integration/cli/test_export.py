"""The tests run `tieredstore export` as a process."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.command_line import one_line, tieredstore
from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.export import Export, places_of
from tieredstore.jobs.exporting.request import Format


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_follow_ends_cleanly_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    tier = GrowingTier(tmp_path / "source")
    tier.append("orders", 0, 12)
    exported = Export(tmp_path / "exported", Format.PARQUET, tier)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tieredstore.cli.main", "export", "--tier", tier.url),
            *("--format", "parquet", "--to", str(exported.target), "--every", "1s"),
            *("--work", str(tmp_path / "work"), "--output", "json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "12 messages" in process.stderr.readline()
    tier.append("orders", 0, 3)
    line = process.stderr.readline()
    assert "15 messages" in line
    assert re.match(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z export: 15 messages, ", line)
    assert re.search(r"; was 3 messages, [\d,]+ s behind at most$", line)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    report = json.loads(out)
    assert (report["stopped"], report["rows"], report["sequence"]) == (True, 15, 2)
    assert report["behind"] == {"messages": 0, "seconds": 0.0}
    assert exported.places() == places_of(tier)


def test_a_target_for_each_topic_is_a_table_of_the_report(tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path / "source")
    tier.append("orders", 0, 2)
    tier.append("other", 0, 3)
    to = f"{tmp_path}/lake/{{topic}}"
    done = tieredstore(
        *("export", "--tier", tier.url, "--format", "parquet", "--to", to, "--quiet"),
        *("--work", str(tmp_path / "work"), "--workers", "1", "--partition-by", "none"),
    )
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    for topic, rows in (("orders", "2"), ("other", "3")):
        assert [topic, f"{tmp_path}/lake/{topic}", "1", rows, "1"] in lines


@pytest.mark.parametrize("topics", ["typo_*", "orders,typo_*", "typo"])
@pytest.mark.parametrize("target", ["exported", "lake/{topic}"])
def test_topics_that_are_not_there_are_refused_and_nothing_is_left(
    tmp_path: Path, topics: str, target: str
) -> None:
    """An export of missing topics is refused. Otherwise the target would record misspelt names, and
    refuse the correct names later."""
    tier = GrowingTier(tmp_path / "source")
    tier.append("orders", 0, 2)
    done = tieredstore(
        *("export", "--tier", tier.url, "--format", "parquet", "--to", tmp_path / target),
        *("--topics", topics, "--work", tmp_path / "work", "--workers", "1", "--quiet"),
    )
    assert done.code == 2
    assert "no topic 'typo" in one_line(done)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_pattern_may_match_nothing_later(tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path / "source")
    tier.append("orders", 0, 2)
    tier.append("others", 0, 1)
    export = [
        *("export", "--tier", tier.url, "--format", "parquet", "--to", tmp_path / "exported"),
        *("--topics", "other*,orders", "--work", tmp_path / "work", "--workers", "1", "--quiet"),
        *("--output", "json"),
    ]
    assert tieredstore(*export).record["rows"] == 3
    shutil.rmtree(next((tmp_path / "source").rglob("others")))
    assert tieredstore(*export).record["rows"] == 0
