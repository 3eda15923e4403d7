"""Tests of syncing many file-based queues."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.disk.sync import MANY
from tieredstore.errors import Exhausted
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue_store import ConsumeQueueStore
from tieredstore.local.queues.interface import QueueUnits
from tieredstore.message.consume_queue import UNIT_DTYPE, pack_unit

TIMES = np.zeros(1, dtype=np.int64)


class Files(PositionalFiles):
    """Files that record their syncs. The first sync of a path that ends with `fails` fails."""

    def __init__(self, fails: str = "") -> None:
        super().__init__(writable=True)
        self.synced: set[str] = set()
        self.threads: set[int] = set()
        self._fails = fails

    def sync(self, path: str, size: int | None = None) -> None:
        self._note(path)
        super().sync(path, size)

    def sync_folder(self, path: str | Path) -> None:
        self._note(str(path))
        super().sync_folder(path)

    def _note(self, path: str) -> None:
        if self._fails and path.endswith(self._fails):
            self._fails = ""
            raise Exhausted(f"{path}: no descriptor")
        self.synced.add(path)
        self.threads.add(threading.get_ident())


def fill(store: ConsumeQueueStore, count: int) -> None:
    unit = np.frombuffer(pack_unit(0, 100, 0), UNIT_DTYPE)
    keys = [QueueKey(f"%LMQ%{number}", 0) for number in range(count)]
    store.append([QueueUnits(key, 0, unit, TIMES) for key in keys], 100)


@pytest.mark.parametrize("fails", ["", "%LMQ%7/0/00000000000000000000", "%LMQ%7/0", "consumequeue"])
@pytest.mark.parametrize("count", [MANY // 8, MANY + 8])
def test_l71_all_files_and_folders_are_synced_however_many(
    tmp_path: Path, count: int, fails: str
) -> None:
    """All files and folders are synced, even after a failed sync. A message may name 1,024 light
    queues."""
    files = Files(fails)
    store = ConsumeQueueStore(tmp_path, files, 200)
    fill(store, count)
    if fails:
        with pytest.raises(Exhausted):
            store.sync()
    store.sync()
    root = tmp_path / "consumequeue"
    assert {str(path) for path in (root, *root.rglob("*"))} == files.synced
    assert (len(files.threads) > 1) == (count >= MANY)
    files.synced.clear()
    store.sync()
    assert not files.synced
