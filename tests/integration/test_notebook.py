"""The cells of examples/history.ipynb run in order, as a notebook runs them."""

from __future__ import annotations

import ast
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.paths import ROOT
from tests.kit.recipe_tier import RecipeTier, order_body

NOTEBOOK = ROOT / "examples" / "history.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; what its last line says, if that is an expression, is its output."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


def test_the_notebook_runs_from_a_tier_to_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    pytest.importorskip("pandas", reason="pandas is not installed")
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    tier = RecipeTier(tmp_path / "built")
    customers = ("ada", "bob", "eve")
    bodies = [order_body(f"o-{n}", customers[n % 3], 100 + n) for n in range(99)]
    tier.add("orders", [*bodies, b"no JSON"], every=timedelta(hours=1))
    monkeypatch.chdir(tmp_path)

    document = json.loads(NOTEBOOK.read_text())
    cells = ["".join(c["source"]) for c in document["cells"] if c["cell_type"] == "code"]
    assert len(cells) == 10
    assert sum("file:///data/tier" in cell for cell in cells) == 1
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs = [run_cell(cell.replace("file:///data/tier", tier.url), names) for cell in cells]

    assert outputs[1] == ["orders"]
    assert outputs[2] == 100
    assert list(outputs[3]["queue_offset"]) == [0, 1, 2, 3, 4]
    assert list(names["by_day"]["messages"]) == [24, 24, 24, 24, 3]
    assert names["revenue"]["euros"].sum() == pytest.approx(sum(range(100, 199)) / 100)
    lines = names["axes"].get_lines()
    assert [line.get_label() for line in lines] == list(customers)
    ends = [line.get_ydata()[-1] for line in lines]
    assert ends == pytest.approx(
        [sum(100 + n for n in range(99) if n % 3 == k) / 100 for k in range(3)]
    )
    assert names["db"].sql("SELECT count(*) FROM 'orders.parquet'").fetchall() == [(99,)]
    names["plt"].close(names["figure"])
    names["db"].close()


def test_the_notebook_is_kept_without_outputs() -> None:
    document = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
