"""Parts of export tests: a request for each format, a run, and the rows that readers see."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tests.kit.growing_tier import GrowingTier
from tieredstore.jobs.exporting.job import run_export
from tieredstore.jobs.exporting.request import ExportRequest, Format
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner, Runner
from tieredstore.jobs.stopping import StopSignal
from tieredstore.scan.location import TierLocation, locate
from tieredstore.scan.selection import Selection

FORMATS = tuple(Format)
Place = tuple[str, int, int]


@dataclass
class Export:
    """A tier, a target in one format, and a journal with which an export resumes."""

    root: Path
    form: Format
    tier: GrowingTier
    selection: Selection = field(default_factory=Selection)
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "warehouse").mkdir(exist_ok=True)

    @property
    def source(self) -> TierLocation:
        return locate(self.tier.url)

    def request(self, **changes: Any) -> ExportRequest:
        base = ExportRequest(
            Format.PARQUET, str(self.target), selection=self.selection, columns=self.columns
        )
        if self.form is Format.ICEBERG:
            base = replace(
                base,
                format=self.form,
                to=None,
                catalog="test",
                table="lake.messages",
                target_options=self.catalog,
            )
        return replace(base, format=self.form, **changes)

    @property
    def target(self) -> Path:
        return self.root / "target"

    @property
    def catalog(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.root}/catalog.db",
            "warehouse": f"file://{self.root}/warehouse",
        }

    def run(
        self,
        *,
        runner: Runner | None = None,
        journal: str | None = None,
        task_bytes: int = 1000,
        stop: StopSignal | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """Run one export to its end. `journal` names a journal file that survives if the run is
        killed."""
        path = None if journal is None else self.root / f"{journal}.jsonl"
        with Journal(path, {"job": "export"}) as kept:
            run = JobRun("export", runner or LocalRunner(1), kept, stop=stop)
            report = run_export(run, self.source, self.request(**changes), task_bytes=task_bytes)
            kept.finish()
        return report

    def table(self) -> pa.Table:
        """Return all rows that a reader of the target sees."""
        match self.form:
            case Format.PARQUET:
                found = ds.dataset(str(self.target), format="parquet", partitioning="hive")
                return found.to_table()
            case Format.DELTA:
                from deltalake import DeltaTable

                return DeltaTable(str(self.target)).to_pyarrow_table()
            case Format.ICEBERG:
                from pyiceberg.catalog import load_catalog

                catalog = load_catalog("test", **self.catalog)
                with suppress_close(catalog):
                    return catalog.load_table("lake.messages").scan().to_arrow()

    def places(self) -> Counter[Place]:
        """Return the number of copies of each message in the target."""
        names = ["topic", "queue_id", "queue_offset"]
        rows = self.table().select(names).to_pylist()
        return Counter(tuple(row[name] for name in names) for row in rows)


class suppress_close:
    """Close the connections that a catalog leaves open."""

    def __init__(self, catalog: Any) -> None:
        self._catalog = catalog

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        with suppress(AttributeError):
            self._catalog.close()


def places_of(tier: GrowingTier) -> Counter[Place]:
    """Return the places (topic, queue id, queue offset) of a tier's messages, each with the count
    1."""
    import tieredstore

    rows = tieredstore.open(tier.url).scan(columns=["topic", "queue_id", "queue_offset"])
    return Counter(tuple(row.values()) for row in rows.to_arrow().to_pylist())
