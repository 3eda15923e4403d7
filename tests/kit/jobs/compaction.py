"""Steps for tests that compact Parquet files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.export import Export, Place
from tieredstore.jobs.exporting.compaction import run_compact_export
from tieredstore.jobs.exporting.request import Format
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import CompactExportOptions
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner

ROUNDS = 4


def export_often(root: Path, tier: GrowingTier, **changes: Any) -> Export:
    """Fill the target by several small exports."""
    exported = Export(root, Format.PARQUET, tier)
    for number in range(ROUNDS):
        exported.run(task_bytes=1 << 20, **changes)
        if number < ROUNDS - 1:
            tier.append("orders", number % 2, 3)
            tier.append("other", 0, 2)
    return exported


def compact(
    to: str | Path, *, journal: Path | None = None, options: Any = None, **changes: Any
) -> dict[str, Any]:
    """Run one compaction to its end. `journal` is a journal file that survives if the run is
    killed."""
    request = CompactExportOptions(str(to), target_options=options or {}, **changes)
    with Journal(journal, {"job": "compact-export"}) as kept:
        report = run_compact_export(JobRun("compact-export", LocalRunner(1), kept), request)
        kept.finish()
    return report


def data_files(target: Path) -> list[Path]:
    """Return the data files that readers use, sorted by folder and name."""
    found = [path for path in target.rglob("*.parquet") if "_tieredstore" not in path.parts]
    return sorted(found, key=lambda path: (path.parent, path.name))


def rows_in_order(target: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the rows of all files, sorted by folder and file name, with the names of their
    folders."""
    return [
        (path.parent.name, row)
        for path in data_files(target)
        for row in pq.ParquetFile(path).read().to_pylist()
    ]


def staged(target: Path) -> list[str]:
    """Return the files that tasks staged and left behind."""
    folder = target / "_tieredstore/staging"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def missing(expected: Counter[Place], found: Counter[Place]) -> Counter[Place]:
    """Return the messages that a reader does not find. Check that it finds none more than twice."""
    assert max(found.values(), default=0) <= 2
    return expected - found
