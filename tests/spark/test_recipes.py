"""The code of docs/spark/recipes.md runs unchanged, and prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.paths import ROOT
from tests.kit.recipe_tier import RecipeTier, order_body

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (ROOT / "docs" / "spark" / "recipes.md").read_text()
RECIPES = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_the_recipes_print_what_the_page_says(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("deltalake", reason="deltalake is not installed")
    tier = RecipeTier(tmp_path / "built")
    tier.fill()
    # What a script is: its functions are pickled whole.
    names: dict[str, Any] = {"__name__": "__main__", "spark": spark}
    assert len(RECIPES) == PAGE.count("```python") == 4
    for code, output in RECIPES:
        placed = code.replace("file:///data/tier", tier.url).replace('"/data/', f'"{tmp_path}/')
        exec(placed, names)
        assert capsys.readouterr().out.rstrip() == output.rstrip()

    tier.add("orders", [order_body("o-1", "ada", 900), order_body("o-5", "eve", 50)])
    assert [names["grow"](), names["grow"]()] == [2, 0]
    names["query"] = None
    writer = names["changes"].writeStream.foreachBatch(names["merge_newest"])
    writer = writer.option("checkpointLocation", f"{tmp_path}/newest-checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    newest = {("o-1", 900), ("o-2", 200), ("o-3", 350), ("o-4", 300), ("o-5", 50)}

    def merged() -> set[tuple[str, int]]:
        found = names["pl"].read_delta(f"{tmp_path}/newest").select("id", "cents")
        return set(found.rows())

    assert merged() == newest
    names["merge_newest"](names["orders"].limit(0), 0)  # a batch that comes again
    assert merged() == newest
