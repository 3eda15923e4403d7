"""The examples of docs/scan.md run unchanged, and print what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.paths import ROOT
from tests.kit.tier_builder import small_tier

PAGE = (ROOT / "docs" / "scan.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


class SparkInOneProcess:
    """Replacement for Spark in the recipe for older versions. It implements the recipe's few calls
    with pyarrow alone."""

    @property
    def sparkContext(self) -> SparkInOneProcess:
        return self

    def parallelize(self, rows: list[Any], partitions: int) -> SparkInOneProcess:
        assert partitions == len(rows)
        self.rows = rows
        return self

    def toDF(self, schema: str) -> SparkInOneProcess:
        assert schema == "task binary"
        return self

    def mapInArrow(
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
    ) -> SparkInOneProcess:
        batches = [pa.record_batch({"task": [bytes(row[0])]}) for row in self.rows]
        self.found = list(function(iter(batches)))
        assert {b.schema.names == [f.split()[0] for f in schema.split(", ")] for b in self.found}
        return self

    def count(self) -> int:
        return sum(batch.num_rows for batch in self.found)


def test_the_examples_print_what_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = small_tier(tmp_path)
    names: dict[str, Any] = {"spark": SparkInOneProcess()}
    assert len(EXAMPLES) == PAGE.count("```python") == 10
    for code, output in EXAMPLES:
        exec(code.replace("file:///data/tier", built.url), names)
        assert capsys.readouterr().out == output
    names["connection"].close()
