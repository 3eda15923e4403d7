"""Runs offloads that die at a chosen write; one forked process each, imports paid once.

Reads one JSON object a line: {"store", "root", "die_at", "torn"}; answers with the exit status: 0
for a run that ended, 9 for one that was killed. A run that ends leaves `writes.json` in its root:
what each write was. `os._exit` is what SIGKILL leaves: the page cache, and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tieredstore import registry
from tieredstore.contracts.segment import Buffer
from tieredstore.jobs.offloading.job import OffloadOptions, run_offload
from tieredstore.metadata.file_operations import AppendFile, FileOperations
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.posix.provider import PosixProvider

KILLED = 9
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


class Writes:
    """Counts writes and dies at one of them: before it, or with half of it done."""

    def __init__(self, die_at: int | None, torn: bool) -> None:
        self._die_at = die_at
        self._torn = torn
        self.seen: list[str] = []

    def next(self, what: str, half: Callable[[], object] | None = None) -> None:
        if len(self.seen) == self._die_at:
            if self._torn and half is not None:
                half()
            os._exit(KILLED)
        self.seen.append(what)


class KillableCalls(PosixCalls):
    def __init__(self, writes: Writes) -> None:
        super().__init__()
        self._writes = writes

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_CREAT:
            self._writes.next("tier create")
        return super().open(path, flags)

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(buffers)
        self._writes.next("tier write", lambda: os.pwrite(fd, data[: len(data) // 2], position))
        return super().write(fd, [data], position)

    def truncate(self, fd: int, length: int) -> None:
        self._writes.next("tier truncate")
        super().truncate(fd, length)

    def make_directory(self, path: str) -> None:
        self._writes.next("tier mkdir")
        super().make_directory(path)

    def unlink(self, path: str) -> None:
        self._writes.next("tier unlink")
        super().unlink(path)

    def sync(self, fd: int) -> None:
        """Nothing: a killed process loses nothing that the system has."""

    def sync_directory(self, path: str) -> None:
        """Nothing, as above."""


class KillableOperations(FileOperations):
    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def write_synced(self, path: Path, data: bytes) -> None:
        self._writes.next("metadata write", lambda: path.write_bytes(data[: len(data) // 2]))
        path.write_bytes(data)

    def open_append(self, path: Path, *, empty: bool) -> AppendFile:
        self._writes.next("journal open")
        return _KillableAppend(super().open_append(path, empty=empty), self._writes)

    def rename(self, source: Path, target: Path) -> None:
        self._writes.next("metadata rename")
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> bool:
        self._writes.next("metadata link")
        return super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._writes.next("metadata unlink")
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        """Nothing, as above."""


class _KillableAppend:
    def __init__(self, file: AppendFile, writes: Writes) -> None:
        self._file = file
        self._writes = writes

    def write(self, data: bytes) -> None:
        self._writes.next("journal write", lambda: self._file.write(data[: len(data) // 2]))
        self._file.write(data)

    def close(self) -> None:
        self._file.close()


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
    report = run_offload(
        OffloadOptions(store, f"file://{root}/tier", root / "state", config=conf, workers=1)
    )
    if report.failed:
        raise report.failed[0][1]


def run(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        writes = Writes(request["die_at"], request["torn"])
        root = Path(request["root"])
        offload(Path(request["store"]), root, writes)
        (root / "writes.json").write_text(json.dumps(writes.seen))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    for line in sys.stdin:
        print(run(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
