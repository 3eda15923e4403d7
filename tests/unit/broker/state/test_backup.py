"""Tests of the backups of `config/`, and of their format version."""

from __future__ import annotations

import io
import tarfile
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from tieredstore.broker.state.backup import (
    FILE_NAME,
    back_up,
    check_format,
    list_files,
    read_backup,
    restore,
)
from tieredstore.errors import Corrupt, Invalid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "store" / "config"
    (folder / "receive").mkdir(parents=True)
    for name in ("topics.json", "topics.json.bak", "receive/1", "tieredStoreMetadata.json"):
        (folder / name).write_text(f"of {name}")
    (folder / "topics.json.tmp").write_text("half")
    return folder


def read(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in list_files(folder)}


def test_what_was_backed_up_comes_back_and_what_was_there_is_kept(
    folder: Path, tmp_path: Path
) -> None:
    before = read(folder)
    assert sorted(before) == ["receive/1", "topics.json", "topics.json.bak"]
    manifest = back_up(folder, tmp_path / "backup")
    assert sorted(manifest.files) == sorted(before)
    (folder / "topics.json").write_text("changed")
    (folder / "new.json").write_text("new")
    (folder / "tieredStoreMetadata.json").write_text("goes on")
    kept = restore(read_backup(tmp_path / "backup"), folder)
    assert read(folder) == before
    assert (folder / "tieredStoreMetadata.json").read_text() == "goes on"
    assert kept is not None
    assert (kept / "topics.json").read_text() == "changed"
    assert (kept / "new.json").read_text() == "new"


def test_it_is_restored_where_nothing_was(folder: Path, tmp_path: Path) -> None:
    back_up(folder, tmp_path / "backup")
    other = tmp_path / "other" / "config"
    assert restore(read_backup(tmp_path / "backup"), other) is None
    assert read(other) == read(folder)


def test_every_damaged_byte_is_noticed(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    back_up(folder, path)
    data = path.read_bytes()
    whole = read_backup(path).contents
    for cut in (0, 1, len(data) // 2):
        path.write_bytes(data[:cut])
        with pytest.raises(Corrupt):
            read_backup(path)
    for position, bit in product(range(len(data)), (1, 8, 64)):
        damaged = bytes([data[position] ^ bit])
        path.write_bytes(data[:position] + damaged + data[position + 1 :])
        with suppress(Corrupt):
            assert read_backup(path).contents == whole
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        contents = {
            member.name: file.read()
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }
    contents["topics.json"] = b"of topics.jsoN"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with pytest.raises(Corrupt, match="manifest"):
        read_backup(path)


def test_nothing_is_no_backup(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    with pytest.raises(Invalid):
        back_up(tmp_path / "config", tmp_path / "backup")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "config"
    check_format(folder)
    check_format(folder)
    (folder / FILE_NAME).write_text('{"version":2}')
    with pytest.raises(Invalid, match="found 2"):
        check_format(folder)
    for path in folder.glob("tieredstoreFormat*"):
        path.write_text("{")
    with pytest.raises(Corrupt):
        check_format(folder)
