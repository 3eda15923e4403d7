"""The recipe of docs/scan.md works on Spark versions that are too old for our data source."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tieredstore
from tests.kit.paths import ROOT
from tests.kit.tier_builder import small_tier

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession


def test_the_recipe_reads_a_tier_by_map_in_arrow(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = (ROOT / "docs" / "scan.md").read_text().split("### Spark before 4.1")[1]
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", section, re.DOTALL)
    assert found is not None
    # What a script is: its functions are pickled whole.
    names: dict[str, Any] = {"__name__": "__main__", "pickle": pickle, "spark": spark}
    names["tier"] = tieredstore.open(small_tier(tmp_path).url)
    exec(found[1], names)
    assert capsys.readouterr().out == found[2]
    messages = names["messages"]
    assert [
        tuple(row) for row in messages.groupBy("queue_id").count().sort("queue_id").collect()
    ] == [
        (0, 12),
        (1, 4),
    ]
    assert messages.where("queue_offset = 105").head().body is not None
