"""The cells of examples/history.ipynb run in order on the sample, and print what the notebook
shows."""

from __future__ import annotations

import ast
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.paths import ROOT
from tieredstore.jobs.sampling.shop import Shop
from tieredstore.jobs.sampling.write import START, write_sample

NOTEBOOK = ROOT / "examples" / "history.ipynb"


def cells_of_code() -> list[dict[str, Any]]:
    document = json.loads(NOTEBOOK.read_text())
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    return [cell for cell in document["cells"] if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell. Return the value of its last line if that line is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


def test_the_notebook_prints_its_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    pytest.importorskip("pandas", reason="pandas is not installed")
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    write_sample(tmp_path / "shop", Shop(round(START.timestamp() * 1000)))
    (tmp_path / "examples").mkdir()
    monkeypatch.chdir(tmp_path / "examples")  # where Jupyter runs a notebook: its own folder
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = 0
    for cell in cells_of_code():
        value = run_cell("".join(cell["source"]), names)
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                assert repr(value) == "".join(output["data"]["text/plain"])
                shown += 1
    assert shown == 6
    lines = names["axes"].get_lines()
    assert [line.get_label() for line in lines] == list(names["table"].columns)
    assert [line.get_ydata()[-1] for line in lines] == pytest.approx(list(names["table"].sum()))
    assert names["db"].sql("SELECT count(*) FROM '../shop/orders.parquet'").fetchall() == [(465,)]
    names["plt"].close(names["figure"])
    names["db"].close()


def test_the_notebook_has_a_plot() -> None:
    images = [
        output["data"]["image/png"]
        for cell in cells_of_code()
        for output in cell["outputs"]
        if "image/png" in output["data"]
    ]
    assert [base64.b64decode(image)[:4] for image in images] == [b"\x89PNG"]
    assert [cell["execution_count"] for cell in cells_of_code()] == list(range(1, 11))
