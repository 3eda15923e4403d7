"""What the README shows runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.paths import ROOT

README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_python_example_runs(tmp_path: Path) -> None:
    [example] = (example for example in EXAMPLES if "open_store" in example)
    (tmp_path / "broker.conf").write_text(
        "brokerName=broker-a\nbrokerClusterName=c\nstorePathRootDir=store\n"
        "tieredStoreFilePath=tier\nmappedFileSizeCommitLog=1048576\n"
        "messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore\n"
        "tieredBackendServiceProvider="
        "org.apache.rocketmq.tieredstore.provider.PosixFileSegment\n"
        "maxHashSlotNum=100\nmaxIndexNum=400\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 b'one coffee' ['order-7']\n"


def test_the_object_store_example_runs(tmp_path: Path, public_a: Path) -> None:
    example = _commands("### On an object store")
    (tmp_path / "demo/java-broker").mkdir(parents=True)
    (tmp_path / "demo/java-broker/public-a").symlink_to(public_a)
    example = re.sub(r"localstack/(up|down)", rf"'{ROOT}'/localstack/\1 --run-dir run", example)
    done = _bash(f"trap \"'{ROOT}'/localstack/down --run-dir run\" EXIT\n{example}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "s3://tier/history: it is safe to write there" in done.stdout
    assert "FD0000000000000000000000000000025C8A5FFD2B2769CE1F520000" in done.stdout  # of pubn-K0
    assert list((tmp_path / "demo/copy").glob("*_LabCluster/labBroker/pub_normal/0"))


def test_the_jobs_example_runs(tmp_path: Path, public_a: Path) -> None:
    store = f"'{public_a}/store' --config '{public_a}/broker.conf'"
    (tmp_path / "demo/tier").mkdir(parents=True)
    offload = f"'{sys.executable}' -m tieredstore offload {store} --state demo/state"
    commands = _commands("### As a table, and by jobs")
    done = _bash(f"{offload} --quiet --tier file://$PWD/demo/tier\n{commands}", tmp_path)
    assert done.returncode == 0, done.stderr
    messages = re.findall(r"^messages +(\d+)", done.stdout, re.MULTILINE)
    assert messages[-1] == "2103", done.stdout  # verify, on Spark, of the tier that backfill made
    assert set(messages) == {"2103"}
    assert (tmp_path / "demo/report/report.html").exists()
    [example] = (example for example in EXAMPLES if "tieredstore.open(" in example)
    python = [sys.executable, "-c", example]
    done = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "302 0\n", done.stderr


def _commands(heading: str) -> str:
    """The first block of shell commands below a heading."""
    [_, commands, *_] = re.split(r"^```\n", README.partition(heading)[2], flags=re.MULTILINE)
    return commands.replace("scripts/tieredstore", f"'{sys.executable}' -m tieredstore")


def _bash(commands: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state-home")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_page_that_the_readme_links_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    missing = [link for link in links if not (ROOT / link).exists()]
    assert missing == []


@pytest.mark.parametrize("script", sorted({*re.findall(r"scripts/[a-z]+", README)}))
def test_every_script_that_the_readme_names_is_there(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
