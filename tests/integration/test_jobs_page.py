"""The first examples of docs/jobs.md run unchanged on the sample, and print what the page says."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.kit.paths import ROOT
from tests.kit.tutorial import run_page

PAGE = (ROOT / "docs" / "jobs.md").read_text()
ORDERS = 465


def test_the_examples_run(tmp_path: Path) -> None:
    _, _, after = PAGE.partition("## Try it")
    examples, _, _ = after.partition("## What every job does")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "XDG_STATE_HOME": str(tmp_path / "state-home")}
    assert run_page(examples, tmp_path, env) == 2
    lake = tmp_path / "lake"
    assert pq.read_table(lake / "orders").num_rows == ORDERS + 1
    assert DeltaTable(lake / "delta").to_pyarrow_table().num_rows == ORDERS
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{lake / 'catalog.db'}")
    assert catalog.load_table("shop.orders").scan().to_arrow().num_rows == ORDERS
    assert (tmp_path / "report/report.html").exists()
