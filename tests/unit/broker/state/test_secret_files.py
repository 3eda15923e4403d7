"""Every function that writes a file with secrets gives it restrictive permissions."""

from __future__ import annotations

import asyncio
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tieredstore.broker.auth.users import UserChange, UserManager
from tieredstore.broker.broker import Broker
from tieredstore.broker.state.backup import back_up, read_backup, restore
from tieredstore.contracts.backups import BackupKind, BackupName
from tieredstore.disk.file_operations import FILES
from tieredstore.providers.posix.provider import PosixProvider

SECRET = "authUsers.json"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    former = os.umask(0o022)
    yield
    os.umask(former)


def make_users(folder: Path, *names: str) -> None:
    async def run() -> None:
        users = UserManager(folder)
        await users.load()
        for name in names:
            users.create_user(UserChange(username=name, password="b-secret"))
            await users.persist()

    asyncio.run(run())


def test_s33_a_backup_and_what_is_restored_from_it_are_for_their_owner_alone(
    tmp_path: Path,
) -> None:
    config, archive, store = tmp_path / "s" / "config", tmp_path / "b.tgz", tmp_path / "t"
    make_users(config, "a", "b")
    (config / "topics.json").write_text("{}")
    archive.write_bytes(b"an old one that all may read")
    archive.chmod(0o644)
    back_up(config, archive)
    assert mode_of(archive) == 0o600
    with tarfile.open(archive) as packed:
        assert SECRET in packed.getnames()

    kept = restore(read_backup(archive), store / "config")
    assert kept is None
    for name in (SECRET, SECRET + ".bak"):
        assert mode_of(store / "config" / name) == 0o600
    assert mode_of(store / "config" / "topics.json") == 0o644
    assert mode_of(store / "config") == 0o700
    assert mode_of(store) == 0o755

    (store / "config").chmod(0o750)  # a folder that is there keeps its mode
    kept = restore(read_backup(archive), store / "config")
    assert kept is not None
    assert mode_of(store / "config") == 0o750
    assert mode_of(kept) == 0o700
    assert mode_of(kept / SECRET) == 0o600


def test_s33_a_users_file_that_others_may_read_is_closed_with_its_backup(tmp_path: Path) -> None:
    make_users(tmp_path, "a")
    path = tmp_path / SECRET
    for name in (SECRET, SECRET + ".bak"):
        (tmp_path / name).chmod(0o644)
    make_users(tmp_path)  # read, and nothing changed
    assert mode_of(path) == mode_of(path.with_name(SECRET + ".bak")) == 0o600
    path.chmod(0o644)
    FILES.replace_file(path, b"{}", mode=0o600, backup=path.with_name(SECRET + ".bak"))
    assert mode_of(path.with_name(SECRET + ".bak")) == 0o600


def test_s33_a_backup_in_a_tier_of_files_is_for_its_owner_alone(tmp_path: Path) -> None:
    provider = PosixProvider(tmp_path, "cluster")
    name = BackupName(1, 1, BackupKind.CONFIG)
    provider.write_backup("broker", name, b"x")
    provider.close()
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert mode_of(path) == 0o600
    assert mode_of(path.parent) == 0o700
    assert mode_of(path.parent.parent) == 0o755


def test_s33_the_folder_of_a_broker_with_a_tier_is_closed_whoever_makes_it(tmp_path: Path) -> None:
    properties = {
        "storePathRootDir": str(tmp_path / "store"),
        "mappedFileSizeCommitLog": "1048576",
        "messageStorePlugIn": "tiered",
        "tieredBackendServiceProvider": "posix",
        "tieredStoreFilePath": str(tmp_path / "tier"),
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "grpcServerPort": "0",
        "metricsExporterType": "DISABLE",
    }
    (tmp_path / "tier").mkdir()

    async def run() -> None:
        broker = Broker.from_properties(properties, origin="broker.conf")
        await broker.start()
        await broker.stop()

    asyncio.run(run())
    assert mode_of(tmp_path / "store") == 0o755
    assert mode_of(tmp_path / "store" / "config") == 0o700
    FILES.make_directory(tmp_path / "other" / "config" / "receive")
    assert mode_of(tmp_path / "other" / "config") == 0o700
    assert mode_of(tmp_path / "other") == 0o755
