"""Backup of the files that a broker needs to start again after it loses its disk.

The files of the state directory's `config/` are copied to the tier unchanged: topics, groups,
consumer offsets, and the metadata of the tier. Users and passwords are not copied, because they are
not meant for readers of the tier. Files that refer to positions in the local commit log (delayed
messages, transactions) are not copied either, because that log is lost with the disk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.clock import Clock
from tieredstore.config import FIELDS_BY_KEY, StoreConfig
from tieredstore.contracts.backups import BackupKind, BackupName, BackupPlace
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.wrapping import find_layer
from tieredstore.disk.errors import RETRY_LATER, wrap_os_errors
from tieredstore.disk.file_archive import hash_files, pack_files
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Fenced, TieredStoreError
from tieredstore.service_thread import ServiceHealth, ServiceThread
from tieredstore.tier.writing import TierWriter

BACKUP_VERSION: Final = 1
KEPT_BACKUPS: Final = 2
"""Number of backups to keep of each kind. If the newest is damaged, the previous one is used."""
CONFIG_FILES: Final = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "lmqConsumerOffset.json",
    "messageRequestMode.json",
    "kvConfig.json",
    "authAcls.json",
    "tieredstoreFormat.json",
)
"""Names of files in `config/`. Most of them are Java's."""
METADATA_NAME: Final = "tieredStoreMetadata.json"
METADATA_INTERVAL_MS: Final = 3_600_000
"""Interval of metadata backups, ms. The metadata may be large, and most of it can be rebuilt from
the tier."""
NOTED_SETTINGS: Final = (
    "brokerClusterName",
    "brokerName",
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "storeType",
    "useSeparateStorePathForRocksdbCQ",
    "enableLmq",
)
"""Settings that a restore needs. Without them the broker could not open the restored store."""
_MAX_BACKOFF_MS = 3_600_000
_log = logging.getLogger(__name__)


class TierBackup:
    """Copies changed files to the tier every `tieredStoreBackupInterval` and when the broker stops.
    Only the last two backups of each kind are kept. A failed backup does not affect the broker.

    `state`: the broker's `storePathRootDir`.
    `flush_metadata`: callable that brings the metadata file up to date.
    `read_config`: callable that returns the existing files of CONFIG_FILES. If it is None, the
    files are read from `state`.
    """

    def __init__(
        self,
        config: StoreConfig,
        provider: SegmentProvider,
        state: Path,
        clock: Clock,
        flush_metadata: Callable[[], None],
        read_config: Callable[[], Mapping[str, bytes]] | None = None,
    ) -> None:
        self._config = config
        self._place = find_layer(provider, BackupPlace)
        self._is_durable = provider.capabilities.durable
        self._folder = state / "config"
        self._clock = clock
        self._flush_metadata = flush_metadata
        self._read_config = read_config or (lambda: read_files(self._folder, CONFIG_FILES))
        self._writer: TierWriter | None = None
        self._there: list[BackupName] | None = None
        self._sequence = 0
        self._copied: dict[BackupKind, Mapping[str, str]] = {}
        self._metadata_due_ms = 0
        self._is_used = False
        self._lock = threading.Lock()  # one round at a time
        self._loop = ServiceThread(
            "tiered-backup",
            self._run_while_writer,
            config.backup_interval_ms,
            clock=clock,
            waits_first=True,
            max_backoff_ms=_MAX_BACKOFF_MS,
        )

    @property
    def is_enabled(self) -> bool:
        """Whether the tier can store backups and the settings enable them."""
        is_wanted = self._config.backup_interval_ms > 0 and self._is_durable
        return is_wanted and self._place is not None

    def become_writer(self, writer: TierWriter) -> None:
        """Make later backups under this writer's epoch. The writer must stay open until
        `finish`."""
        self._writer = writer if self.is_enabled else None

    def start(self) -> None:
        """Start the loop that copies changed files at intervals."""
        if self._writer is not None:
            self._is_used = True
            self._loop.start()

    def stop(self) -> None:
        """Stop the loop after the copy in progress. `finish` must follow. Idempotent."""
        self._loop.stop()

    def finish(self) -> None:
        """Copy changed files before the epoch is released. Errors are only logged. No-op without a
        `start`. Idempotent."""
        writer = self._writer
        if self._is_used and writer is not None:
            try:
                writer.confirm()
                self.run_once(is_last=True)
            except TieredStoreError as error:
                _log.warning("the tier has no backup of the last changes to config/: %s", error)
        self._writer = None

    def health(self) -> list[ServiceHealth]:
        """Return the health of the loop that makes backups."""
        return [self._loop.health()] if self.is_enabled else []

    def run_once(self, *, is_last: bool = False) -> list[BackupName]:
        """Copy changed files and return the backups made. The metadata is copied at most once an
        hour, unless `is_last` is set. Raises Unavailable, or Fenced if the epoch was lost."""
        now_ms = self._clock.now_ms()
        with self._lock:
            made = self._copy(BackupKind.CONFIG, self._read_config())
            if is_last or now_ms >= self._metadata_due_ms:
                self._flush_metadata()  # created and deleted entries may be in the journal alone
                made += self._copy(BackupKind.METADATA, self._read_metadata())
                self._metadata_due_ms = now_ms + METADATA_INTERVAL_MS
        return made

    def renew_metadata(self) -> bool:
        """Copy the metadata, if the tier has a copy or this process makes copies. Call this before
        deleting the last segments of a queue. Otherwise a restore from an older copy could move the
        end of the queue back. If the copy fails, the reason is logged and the result is False. The
        caller must then postpone the deletion. Raises Fenced."""
        broker = self._config.broker_name
        try:
            if self._place is None or not (
                (self._is_used and self._writer is not None)
                or any(
                    name.kind is BackupKind.METADATA for name in self._place.list_backups(broker)
                )
            ):
                return True
            with self._lock:
                self._flush_metadata()
                self._copy(BackupKind.METADATA, self._read_metadata())
        except Fenced:
            raise
        except TieredStoreError as error:
            _log.warning("the tier has no backup of the last changes to its metadata: %s", error)
            return False
        return True

    def _run_while_writer(self) -> None:
        try:
            self.run_once()
        except Fenced as error:
            _log.warning("no more backups of config/: %s", error)
            self._writer = None

    def _read_metadata(self) -> Mapping[str, bytes]:
        return read_files(self._folder, (METADATA_NAME,))

    def _copy(self, kind: BackupKind, contents: Mapping[str, bytes]) -> list[BackupName]:
        place, writer = self._place, self._writer
        if place is None or writer is None:
            return []
        hashes = hash_files(contents)
        if not contents or self._copied.get(kind) == hashes:
            return []
        writer.check()
        broker = self._config.broker_name
        there = self._there if self._there is not None else [*place.list_backups(broker)]
        made = self._choose_name(there, writer.epoch_number, kind)
        notes = note_settings(self._config)
        _, data = pack_files(contents, BACKUP_VERSION, taken_ms=self._clock.now_ms(), notes=notes)
        self._there = None  # unknown, unless all of this succeeds
        place.write_backup(broker, made, data)
        writer.confirm()
        self._copied[kind] = hashes
        there.append(made)
        old = sorted(name for name in there if name.kind is kind)[:-KEPT_BACKUPS]
        place.delete_backups(broker, old)
        self._there = [name for name in there if name not in old]
        return [made]

    def _choose_name(self, there: Sequence[BackupName], epoch: int, kind: BackupKind) -> BackupName:
        used = (name.sequence for name in there if name.epoch == epoch)
        self._sequence = max(self._sequence, *used, 0) + 1
        return BackupName(epoch, self._sequence, kind)


def read_files(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Read the files that exist. If a file is missing or empty, its `.bak` is read instead. Raises
    Unavailable."""
    contents: dict[str, bytes] = {}
    for name in names:
        for path in (folder / name, folder / f"{name}.bak"):
            with wrap_os_errors("read", path, invalid=RETRY_LATER), suppress(FileNotFoundError):
                if data := FILES.read(path):
                    contents[name] = data
                    break
    return contents


def note_settings(config: StoreConfig) -> dict[str, str]:
    """Return the values of NOTED_SETTINGS in broker.conf format."""
    values = ((key, getattr(config, FIELDS_BY_KEY[key].name)) for key in NOTED_SETTINGS)
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in values
    }
