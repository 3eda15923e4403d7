"""Spark Connect: the client has no JVM, and the server does not have this package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.paths import ROOT


def test_enabled_and_read_through_spark_connect(java: None, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'pyspark[connect]'")
    tier = GrowingTier(tmp_path / "built")
    tier.append("orders", 0, 12)
    tier.append("orders", 1, 4)
    command = [sys.executable, "-m", "tests.kit.spark.connect_child", tier.url, str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    session, count, pushed, direct, of_jobs = json.loads(done.stdout.splitlines()[-1])
    assert session == "pyspark.sql.connect.session"
    assert (count, pushed, direct) == (16, 4, 16)
    assert of_jobs.startswith("a session of Spark Connect has no SparkContext")
