"""File names are on disk before any data that depends on them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.held_syncs import HeldSyncs
from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.local.log.commit_log import FILES_AHEAD
from tieredstore.local.recovery.checkpoint import (
    CHECKPOINT_SIZE_BYTES,
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)


def test_every_folder_is_synced_before_the_checkpoint_tells_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    syncs = HeldSyncs(monkeypatch)
    with running(small_config(root)) as store:
        started = [path.removeprefix(str(root)) for path in syncs.synced]
        assert started.index("/abort") < len(started) - 1 - started[::-1].index("")
        put_all(store, [plain("A", 3, number) for number in range(12)])
        store.flush()
        names = [path.removeprefix(str(root)) for path in syncs.synced]
        told = next(i for i, name in enumerate(names) if name.startswith("/checkpoint"))
        for folder in ("/commitlog", "/consumequeue/A/3", "/consumequeue/A", "/consumequeue"):
            assert folder in names[:told], folder
        assert "/index" in names[:told]
        # More files in each than were made ahead: their names are synced, in the innermost folder
        # at least.
        syncs.synced.clear()
        put_all(store, [plain("A", 3, number) for number in range(12, 120)])
        store.flush()
        names = [path.removeprefix(str(root)) for path in syncs.synced]
        assert {"/commitlog", "/consumequeue/A/3", "/index"} <= set(names)
    assert not (root / "abort").exists()
    assert str(root) in syncs.synced[-1 - FILES_AHEAD :]  # that it is gone is on disk


def test_a_new_checkpoint_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(Exception, match="checkpoint"):
            write_checkpoint(tmp_path, Checkpoint(7))
    assert read_checkpoint(tmp_path) == Checkpoint()
    write_checkpoint(tmp_path, Checkpoint(7))
    identity = (tmp_path / "checkpoint").stat().st_ino
    write_checkpoint(tmp_path, Checkpoint(8))
    status = (tmp_path / "checkpoint").stat()
    assert (status.st_ino, status.st_size) == (identity, CHECKPOINT_SIZE_BYTES)  # as Java maps it
    assert read_checkpoint(tmp_path) == Checkpoint(8)
