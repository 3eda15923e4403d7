"""Finds the newest backup of a broker that is whole."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import msgspec

from tieredstore import registry
from tieredstore.config import StoreConfig
from tieredstore.contracts.backups import BackupKind, BackupName, BackupPlace
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.disk.file_archive import FileArchive, unpack_files
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.metadata.former import NOTHING_FORMER, FormerMetadata
from tieredstore.scan.location import METADATA_FILE
from tieredstore.tier.backup import BACKUP_VERSION, METADATA_NAME


@dataclass(frozen=True, slots=True)
class FoundBackup:
    """One that was read and checked. size_bytes: that were read, those of damaged ones included;
    damaged: later ones of its kind that cannot be used, and why."""

    name: BackupName
    archive: FileArchive
    size_bytes: int
    damaged: tuple[str, ...]


def find_backup(provider: SegmentProvider, broker: str, kind: BackupKind) -> FoundBackup | None:
    """Find the newest backup of a kind that is whole; None where there is none. Raises Corrupt when
    all are damaged, Invalid for one of a newer version, Unavailable."""
    place = find_layer(provider, BackupPlace)
    names = [] if place is None else place.list_backups(broker)
    damaged: list[str] = []
    size_bytes = 0
    for name in sorted(names, reverse=True):
        data = place.read_backup(broker, name) if place and name.kind is kind else None
        if data is None:  # deleted since: there is a newer one, or it is of the other kind
            continue
        size_bytes += len(data)
        try:
            archive = unpack_files(data, BACKUP_VERSION, f"{provider.url}: backup {name}")
        except Corrupt as error:
            damaged.append(str(error))
        else:
            return FoundBackup(name, archive, size_bytes, tuple(damaged))
    if damaged:
        raise Corrupt(f"no backup of {kind} is whole: {'; '.join(damaged)}")
    return None


def read_former_metadata(backup: FoundBackup, config: StoreConfig) -> FormerMetadata:
    """Read what a backup of the metadata knew. Raises Corrupt, Invalid, Unavailable."""
    data = backup.archive.contents.get(METADATA_NAME)
    if data is None:
        return NOTHING_FORMER
    with TemporaryDirectory(prefix="tieredstore-restore-") as folder:
        FILES.make_directory(Path(folder, METADATA_FILE).parent)
        FILES.replace_file(Path(folder, METADATA_FILE), data)
        placed = msgspec.structs.replace(config, store_path_root_dir=folder)
        metadata = cast("MetadataStore", registry.metadata_store(placed, read_only=True))
        with closing(metadata):
            metadata.load()
            return FormerMetadata.of(metadata, config.broker_name, backup.archive.manifest.taken_ms)


def find_former_metadata(
    provider: SegmentProvider, config: StoreConfig
) -> tuple[FormerMetadata, str, tuple[str, ...]]:
    """Find what the last metadata knew, from which backup ("" without one that is whole: all but
    little of it is made from the tier), and what is wrong with later ones. Raises Unavailable."""
    try:
        found = find_backup(provider, config.broker_name, BackupKind.METADATA)
        if found is not None:
            return read_former_metadata(found, config), str(found.name), found.damaged
    except Corrupt as error:
        return NOTHING_FORMER, "", (str(error),)
    return NOTHING_FORMER, "", ()


def require_backup(provider: SegmentProvider, broker: str) -> FoundBackup:
    """Find the newest whole backup of topics, groups and offsets. Raises Invalid where there is
    none, and what `find_backup` raises."""
    found = find_backup(provider, broker, BackupKind.CONFIG)
    if found is None:
        raise Invalid(
            f"{provider.url}: no backup of broker {broker!r} is in the tier: a broker of this "
            "project makes them (tieredStoreBackupInterval). Without one, `tieredstore rebuild "
            "metadata` and `tieredstore tier adopt` make a store that knows no groups and offsets"
        )
    return found
