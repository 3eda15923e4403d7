"""Runs backfills that are killed at a chosen write. A request is {"table", "root", "die_at",
"torn"}. The exit status is 0 for a completed run and 9 (`KILLED`) for a killed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.jobs.backfill import backfill_target
from tests.kit.killable.driver import serve
from tests.kit.killable.writes import KillableCalls, KillableOperations, Writes
from tieredstore import registry
from tieredstore.jobs.backfilling.job import run_backfill
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import BackfillOptions
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider

PROPERTIES = {
    "tieredStoreConsumeQueueMaxSize": "200",
    "tieredStoreIndexFileMaxHashSlotNum": "8",
    "tieredStoreIndexFileMaxIndexNum": "20",
}


class KillableJournal(Journal):
    def __init__(self, path: Path, writes: Writes) -> None:
        super().__init__(path, {"job": "backfill"})
        self._writes = writes

    def record(self, step: str, outcome: object) -> None:
        self._writes.next("step")
        super().record(step, outcome)


def fill(table: Path, root: Path, writes: Writes) -> None:
    registry.segment_provider = lambda config: PosixProvider(
        config.tier_file_path, config.broker_cluster_name, calls=KillableCalls(writes)
    )
    registry.metadata_store = lambda config, clock=None, **_: DefaultMetadataStore(
        Path(config.store_path_root_dir) / "config" / "tieredStoreMetadata.json",
        config.broker_name,
        operations=KillableOperations(writes),
    )
    tier = backfill_target(
        f"file://{root}/tier",
        root / "state",
        cluster="cluster-a",
        broker="broker-a",
        properties=PROPERTIES,
    )
    root.mkdir(exist_ok=True)
    with KillableJournal(root / "journal", writes) as journal:
        run_backfill(
            JobRun("backfill", LocalRunner(), journal),
            tier,
            str(table),
            BackfillOptions(segment_bytes=1500),
            task_bytes=3000,
        )


def run(request: dict[str, Any]) -> None:
    writes = Writes(request["die_at"], request["torn"])
    root = Path(request["root"])
    fill(Path(request["table"]), root, writes)
    writes.save(root)


if __name__ == "__main__":
    serve(run)
