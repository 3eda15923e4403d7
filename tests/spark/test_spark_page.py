"""The examples of docs/spark.md run unchanged, and print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.paths import ROOT
from tests.kit.tier_builder import small_tier
from tieredstore.spark.source import RocketmqTieredDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (ROOT / "docs" / "spark.md").read_text()
EXAMPLES = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_print_what_the_page_says(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.dataSource.register(RocketmqTieredDataSource)
    built = small_tier(tmp_path / "built")
    names: dict[str, Any] = {"spark": spark}
    assert len(EXAMPLES) >= 5
    for code, output in EXAMPLES:
        placed = code.replace("file:///data/tier", built.url).replace('"/data/', f'"{tmp_path}/')
        exec(placed, names)
        assert capsys.readouterr().out.rstrip() == output.rstrip()
    assert not (tmp_path / "damage").exists()
