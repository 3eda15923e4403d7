"""Search for the newest intact backup of a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import msgspec

from tieredstore import registry
from tieredstore.config import StoreConfig
from tieredstore.contracts.backups import BackupKind, BackupName, BackupPlace
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.disk.file_archive import FileArchive, unpack_files
from tieredstore.disk.file_operations import FILES, cut_zeros
from tieredstore.errors import Corrupt, Invalid
from tieredstore.java_json import quote_integer_keys
from tieredstore.jobs.metadata.former import NOTHING_FORMER, FormerMetadata
from tieredstore.jobs.target import find_only_broker
from tieredstore.scan.location import METADATA_FILE, TierLocation
from tieredstore.tier.backup import BACKUP_VERSION, METADATA_NAME


@dataclass(frozen=True, slots=True)
class FoundBackup:
    """Backup that was read and checked. `size_bytes`: bytes read, including damaged backups.
    `damaged`: newer unusable backups of the same kind, with reasons."""

    name: BackupName
    archive: FileArchive
    size_bytes: int
    damaged: tuple[str, ...]


def find_backup(provider: SegmentProvider, broker: str, kind: BackupKind) -> FoundBackup | None:
    """Return the newest intact backup of a kind, or None without backups. Raises Corrupt if all
    backups are damaged, Invalid for a backup of a newer version, Unavailable."""
    place = find_layer(provider, BackupPlace)
    names = [] if place is None else place.list_backups(broker)
    damaged: list[str] = []
    size_bytes = 0
    for name in sorted(names, reverse=True):
        data = place.read_backup(broker, name) if place and name.kind is kind else None
        if data is None:  # Deleted since: there is a newer one, or it is of the other kind.
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
    """Read the facts in a metadata backup. Raises Corrupt, Invalid, Unavailable."""
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
    """Return the facts of the newest readable metadata backup, its name ("" without one), and the
    errors of newer backups. Raises Unavailable."""
    try:
        found = find_backup(provider, config.broker_name, BackupKind.METADATA)
        if found is not None:
            return read_former_metadata(found, config), str(found.name), found.damaged
    except Corrupt as error:
        return NOTHING_FORMER, "", (str(error),)
    return NOTHING_FORMER, "", ()


def read_former_metadata_of(location: TierLocation) -> FormerMetadata:
    """Return facts from the newest metadata backup of a tier, such as the end offsets of queues
    whose messages have all expired. Raises Invalid for a tier of several brokers, Unavailable."""
    with closing(location.connect()) as provider:
        broker = location.broker or find_only_broker(provider)
        config = msgspec.structs.replace(location.config, broker_name=broker)
        former, _, _ = find_former_metadata(provider, config)
        return former


def require_backup(provider: SegmentProvider, broker: str) -> FoundBackup:
    """Return the newest intact backup of topics, groups and offsets. Raises the errors of
    `find_backup`."""
    found = find_backup(provider, broker, BackupKind.CONFIG)
    if found is None:
        raise Invalid(
            f"{provider.url}: no backup of broker {broker!r} is in the tier: a broker of this "
            "project makes them (tieredStoreBackupInterval). Without one, `tieredstore rebuild "
            "metadata` and `tieredstore tier adopt` make a store that knows no groups and offsets"
        )
    return found


LMQ_OFFSETS_FILE: Final = "lmqConsumerOffset.json"
OFFSET_FILES: Final = ("consumerOffset.json", LMQ_OFFSETS_FILE)
_TABLE: Final = "offsetTable"
_LMQ_TABLE: Final = "lmqOffsetTable"
_Queues = dict[str, int]


@dataclass(slots=True)
class FittedOffsets:
    """Changes in a file of consumer offsets. `kept`: number of unchanged offsets. `dropped`: number
    of removed offsets, whose topics are not in the tier and therefore empty after the restore.
    `lowered`: one row for each lowered offset."""

    kept: int = 0
    dropped: int = 0
    lowered: list[dict[str, object]] = field(default_factory=list)

    def note_lowered(self, key: str, queue_id: int, offset: int, end: int) -> None:
        """Add a lowered offset. `key`: topic and group, as in the file."""
        topic, _, group = key.partition("@")
        self.lowered.append(
            {
                "group": group,
                "topic": topic,
                "queue_id": queue_id,
                "offset": offset,
                "to_offset": end,
            }
        )


def fit_offsets(
    data: bytes,
    ends: Mapping[QueueKey, int | None],
    stays_local: Callable[[str], bool],
    fitted: FittedOffsets,
    find_light_end: Callable[[str], int] = lambda _queue: 0,
) -> bytes:
    """Lower the offsets in a file of consumer offsets to the ends of the queues. A queue that is
    missing in `ends` is empty. None means an unknown end. `find_light_end`: returns the end of a
    light queue in the tier, or 0. The changes are added to `fitted`. Raises Corrupt."""
    try:
        file: dict[str, Any] = msgspec.json.decode(
            quote_integer_keys(cut_zeros(data)), type=dict[str, Any]
        )
        table = msgspec.convert(file.get(_TABLE, {}), dict[str, _Queues])
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the backup has consumer offsets that cannot be read: {error}") from error
    new: dict[str, _Queues] = {}
    for key, queues in table.items():
        topic = key.partition("@")[0]
        if stays_local(topic):
            fitted.dropped += len(queues)
            continue
        new[key] = dict(queues)
        for queue_id, offset in queues.items():
            end = ends.get(QueueKey(topic, int(queue_id)), 0)
            if end is None or offset <= end:
                fitted.kept += 1
                continue
            new[key][queue_id] = end
            fitted.note_lowered(key, int(queue_id), offset, end)
    light: dict[str, int] = {}
    for key, offset in (file.pop(_LMQ_TABLE, None) or {}).items():
        end = find_light_end(key.partition("@")[0])
        if not end:  # Only the history of lite topics is in a tier.
            fitted.dropped += 1
            continue
        light[key] = min(offset, end)
        if offset > end:
            fitted.note_lowered(key, 0, offset, end)
        else:
            fitted.kept += 1
    tables: dict[str, Any] = {_TABLE: new} | ({_LMQ_TABLE: light} if light else {})
    return msgspec.json.format(msgspec.json.encode(file | tables), indent=1)
