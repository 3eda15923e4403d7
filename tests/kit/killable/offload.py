"""Runs offloads that are killed at a chosen write. A request is {"store", "root", "die_at",
"torn"}. The exit status is 0 for a completed run and 9 (`KILLED`) for a killed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.killable.driver import serve
from tests.kit.killable.writes import KillableCalls, KillableOperations, Writes
from tieredstore import registry
from tieredstore.jobs.offloading.job import offload_store
from tieredstore.jobs.options import OffloadOptions
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider

CONF = "\n".join(
    (
        "brokerName=broker-a",
        "brokerClusterName=cluster-a",
        "tieredStoreCommitLogMaxSize=2000",
        "tieredStoreConsumeQueueMaxSize=100",
        "tieredStoreGroupCommitSize=1500",
        "tieredStoreIndexFileMaxHashSlotNum=8",
        "tieredStoreIndexFileMaxIndexNum=20",
    )
)


def offload(store: Path, root: Path, writes: Writes) -> None:
    registry.segment_provider = lambda config: PosixProvider(
        config.tier_file_path,
        config.broker_cluster_name,
        calls=KillableCalls(writes),
    )
    registry.metadata_store = lambda config, clock, **options: DefaultMetadataStore(
        Path(config.store_path_root_dir) / "config" / "tieredStoreMetadata.json",
        config.broker_name,
        clock,
        operations=KillableOperations(writes),
    )
    conf = root.parent / f"{root.name}.conf"
    conf.write_text(CONF)
    report = offload_store(
        OffloadOptions(f"file://{root}/tier", store, state=root / "state", config=conf, workers=1)
    )
    if report.failed:
        raise report.failed[0][1]


def run(request: dict[str, Any]) -> None:
    writes = Writes(request["die_at"], request["torn"])
    root = Path(request["root"])
    offload(Path(request["store"]), root, writes)
    writes.save(root)


if __name__ == "__main__":
    serve(run)
