"""Verbs run in environments that lack the library of an extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.paths import ROOT

PROGRAM = """
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from tieredstore.cli.main import run
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("module", "verb", "who", "extra"),
    [
        ("pyarrow", "report --to out", "report", "jobs"),
        ("jinja2", "report --to out", "report", "jobs"),
        ("pyarrow", "export --format parquet --to out", "export", "jobs"),
        ("deltalake", "export --format delta --to out", "delta", "delta"),
        ("pyiceberg", "export --format iceberg --catalog c --table a.b", "iceberg", "iceberg"),
        ("pyarrow", "backfill --from in --state s --cluster c --broker b", "backfill", "jobs"),
        ("boto3", "export --format parquet --to s3://bucket/x", "S3", "s3"),
        ("duckdb", "sql .tables", "sql", "duckdb"),
        ("pyarrow", "sql .tables", "sql", "duckdb"),
        ("boto3", "ls --tier s3://bucket/x?region=r", "S3", "s3"),
        ("fsspec", "ls --tier gs://bucket/x", "segment provider 'fsspec'", "fsspec"),
        ("pyspark", "verify --spark", "Spark", "spark"),
        ("aiohttp", "dev", "the broker", "broker"),
        ("yaml", "topic list", "topic list", "broker"),
    ],
)
def test_each_verb_says_in_one_way_what_is_missing_and_what_brings_it(
    tmp_path: Path, module: str, verb: str, who: str, extra: str
) -> None:
    arguments = verb.split()
    if not {"--tier", "dev", "topic"} & {*arguments}:
        tier = GrowingTier(tmp_path / "source")
        tier.append("orders", 0, 1)
        arguments += ["--tier", tier.url]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == (
        f"tieredstore: error: {who} needs {module}, which is not installed: "
        f"pip install 'tieredstore[{extra}]'\n"
    )
    assert (done.returncode, done.stdout) == (2, "")
