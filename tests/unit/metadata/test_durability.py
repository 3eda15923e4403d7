"""A metadata file is synced before it is renamed, so that its content is always on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tieredstore.metadata.json_store import DefaultMetadataStore

NAME = "tieredStoreMetadata.json"


class Disk:
    """Records syncs and renames in order, with each file's bytes at that time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.synced: dict[Path, bytes | None] = {}
        self.renamed: list[tuple[str, bytes, bytes | None]] = []
        """For each rename: the new name, the file's bytes, and the file's bytes at the last
        sync."""
        self.folders_after_rename: set[Path] = set()
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._noting_sync(getattr(os, name)))
        for name in ("replace", "rename"):
            patch.setattr(os, name, self._noting_rename(getattr(os, name)))

    def _noting_sync(self, call: Any) -> Any:
        def sync(fd: int) -> None:
            call(fd)
            path = Path(f"/proc/self/fd/{fd}").readlink()
            self.synced[path] = path.read_bytes() if path.is_file() else None
            if path.is_dir():
                self.folders_after_rename.add(path)

        return sync

    def _noting_rename(self, call: Any) -> Any:
        def rename(source: Any, target: Any, **given: Any) -> None:
            path = Path(source)
            self.renamed.append((Path(target).name, path.read_bytes(), self.synced.get(path)))
            call(source, target, **given)
            self.folders_after_rename.discard(path.parent)

        return rename


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the names of descriptors")
def test_the_metadata_file_is_synced_before_it_gets_its_name_and_its_folder_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store" / "config"
    disk = Disk(monkeypatch)
    store = DefaultMetadataStore(folder / NAME, "broker-a")
    store.load()
    assert store.add_topic("first").topic_id == 0
    assert tmp_path in disk.synced, "the folder that was made has no name yet after a power cut"
    assert tmp_path / "store" in disk.synced
    assert folder in disk.folders_after_rename
    store.add_topic("second")
    store.close()
    assert folder in disk.folders_after_rename
    main = [(content, synced) for name, content, synced in disk.renamed if name == NAME]
    assert len(main) >= 2
    for content, synced in main:
        assert synced == content, "bytes that are only in the page cache got the name"
    assert any(name == f"{NAME}.bak" for name, _, _ in disk.renamed)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the names of descriptors")
def test_a_backup_that_is_a_copy_is_synced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup is also synced if it is a copy, as on file systems without hard links."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    disk = Disk(monkeypatch)
    store = DefaultMetadataStore(tmp_path / NAME, "broker-a")
    store.load()
    store.add_topic("first")
    store.add_topic("second")
    store.close()
    backups = [(content, synced) for name, content, synced in disk.renamed if name.endswith(".bak")]
    assert backups
    for content, synced in backups:
        assert synced == content
