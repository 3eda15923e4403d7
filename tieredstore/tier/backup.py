"""TierBackup: the files from which a broker begins again when its disk is lost, kept in its tier.

What is copied are files of the state directory's `config/`, by their names, as they are: topics,
groups, consumer offsets, and beside them the metadata of the tier. Left out are users and
their passwords, which not everybody may know who may read the tier, and how far the broker is with
what stays on its disk (delayed messages, transactions): that is lost with it.
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
"""Of each kind: when the newest is damaged, there is the one before."""
CONFIG_FILES: Final = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "lmqConsumerOffset.json",
    "kvConfig.json",
    "authAcls.json",
    "tieredstoreFormat.json",
)
"""Names in `config/`, most of them Java's."""
METADATA_NAME: Final = "tieredStoreMetadata.json"
METADATA_INTERVAL_MS: Final = 3_600_000
"""The metadata can be made again from the tier but for little, and it may be large."""
NOTED_SETTINGS: Final = (
    "brokerClusterName",
    "brokerName",
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "storeType",
    "useSeparateStorePathForRocksdbCQ",
    "enableLmq",
)
"""Settings without which a store is made that its broker does not open."""
_MAX_BACKOFF_MS = 3_600_000
_log = logging.getLogger(__name__)


class TierBackup:
    """Copies what has changed, every `tieredStoreBackupInterval` and at the stop. One that is older
    than the last two of its kind is deleted. A failure harms nothing else.

    state: the broker's `storePathRootDir`. flush_metadata: brings its file up to date.
    """

    def __init__(
        self,
        config: StoreConfig,
        provider: SegmentProvider,
        state: Path,
        clock: Clock,
        flush_metadata: Callable[[], None],
    ) -> None:
        self._config = config
        self._place = find_layer(provider, BackupPlace)
        self._is_durable = provider.capabilities.durable
        self._folder = state / "config"
        self._clock = clock
        self._flush_metadata = flush_metadata
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
        """Whether there is a place for backups, and somebody wants them."""
        is_wanted = self._config.backup_interval_ms > 0 and self._is_durable
        return is_wanted and self._place is not None

    def become_writer(self, writer: TierWriter) -> None:
        """Copy in the name of a writer from now on, which outlives this."""
        self._writer = writer if self.is_enabled else None

    def start(self) -> None:
        """Begin to copy at the interval."""
        if self._writer is not None:
            self._is_used = True
            self._loop.start()

    def stop(self) -> None:
        """End the loop after the copy in progress; `finish` follows. Idempotent."""
        self._loop.stop()

    def finish(self) -> None:
        """Copy what has changed, as the last thing before the right to write is given back. What
        fails then is said and left. Does nothing without a `start`. Idempotent."""
        writer = self._writer
        if self._is_used and writer is not None:
            try:
                writer.confirm()
                self.run_once(is_last=True)
            except TieredStoreError as error:
                _log.warning("the tier has no backup of the last changes to config/: %s", error)
        self._writer = None

    def health(self) -> list[ServiceHealth]:
        """Tell how the background loop is."""
        return [self._loop.health()] if self.is_enabled else []

    def run_once(self, *, is_last: bool = False) -> list[BackupName]:
        """Copy what has changed; returns the backups made. The metadata goes once an hour, and when
        `is_last`. Raises Fenced when the right to write is lost, Unavailable."""
        now_ms = self._clock.now_ms()
        with self._lock:
            made = self._copy(BackupKind.CONFIG, CONFIG_FILES)
            if is_last or now_ms >= self._metadata_due_ms:
                self._flush_metadata()  # what came and went may be in the journal alone
                made += self._copy(BackupKind.METADATA, (METADATA_NAME,))
                self._metadata_due_ms = now_ms + METADATA_INTERVAL_MS
        return made

    def renew_metadata(self) -> None:
        """Copy the metadata, where the tier has a copy: by an older one a queue that was emptied
        since would go on before its end. For a writer that deletes by hand; what fails is said and
        left."""
        broker = self._config.broker_name
        try:
            if self._place is None or not any(
                name.kind is BackupKind.METADATA for name in self._place.list_backups(broker)
            ):
                return
            with self._lock:
                self._flush_metadata()
                self._copy(BackupKind.METADATA, (METADATA_NAME,))
        except TieredStoreError as error:
            _log.warning("the tier has no backup of the last changes to its metadata: %s", error)

    def _run_while_writer(self) -> None:
        try:
            self.run_once()
        except Fenced as error:
            _log.warning("no more backups of config/: %s", error)
            self._writer = None

    def _copy(self, kind: BackupKind, names: tuple[str, ...]) -> list[BackupName]:
        place, writer = self._place, self._writer
        if place is None or writer is None:
            return []
        contents = read_files(self._folder, names)
        hashes = hash_files(contents)
        if not contents or self._copied.get(kind) == hashes:
            return []
        writer.check()
        broker = self._config.broker_name
        there = self._there if self._there is not None else [*place.list_backups(broker)]
        made = self._choose_name(there, writer.epoch_number, kind)
        notes = note_settings(self._config)
        _, data = pack_files(contents, BACKUP_VERSION, taken_ms=self._clock.now_ms(), notes=notes)
        self._there = None  # nobody knows, unless all of this ends well
        place.write_backup(broker, made, data)
        writer.confirm()
        self._copied[kind] = hashes
        there.append(made)
        old = sorted(name for name in there if name.kind is kind)[:-KEPT_BACKUPS]
        place.delete_backups(broker, old)
        self._there = [name for name in there if name not in old]
        return [made]

    def _choose_name(self, there: Sequence[BackupName], epoch: int, kind: BackupKind) -> BackupName:
        """One that no write had, also none that failed and may still arrive."""
        used = (name.sequence for name in there if name.epoch == epoch)
        self._sequence = max(self._sequence, *used, 0) + 1
        return BackupName(epoch, self._sequence, kind)


def read_files(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """Read those of some files that are there, each as it was at one moment. One that is just being
    replaced, or that a power cut has left empty, is read from its `.bak`. Raises Unavailable."""
    contents: dict[str, bytes] = {}
    for name in names:
        for path in (folder / name, folder / f"{name}.bak"):
            with wrap_os_errors("read", path, invalid=RETRY_LATER), suppress(FileNotFoundError):
                if data := FILES.read(path):
                    contents[name] = data
                    break
    return contents


def note_settings(config: StoreConfig) -> dict[str, str]:
    """Note the settings of NOTED_SETTINGS, as a broker.conf has them."""
    values = ((key, getattr(config, FIELDS_BY_KEY[key].name)) for key in NOTED_SETTINGS)
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in values
    }
