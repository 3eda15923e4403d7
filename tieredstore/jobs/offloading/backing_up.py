"""Backup of the topics, groups and offsets of a store to the tier, in the form of our own broker.
It makes `restore` work after an offload."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import TieredStoreError
from tieredstore.jobs.options import OffloadOptions
from tieredstore.local.broker_config import BrokerConfig, read_broker_config
from tieredstore.local.recovery.inferring import infer_sizes
from tieredstore.tier.backup import CONFIG_FILES, TierBackup
from tieredstore.tier.writing import TierWriter

_log = logging.getLogger(__name__)


class StoreBackup:
    """Backs up the store's `config/` and the tier's metadata if they have changed. This happens at
    the end of a run and, in follow mode, every `tieredStoreBackupInterval`."""

    def __init__(
        self,
        options: OffloadOptions,
        config: StoreConfig,
        provider: SegmentProvider,
        metadata: MetadataStore,
        writer: TierWriter,
        clock: Clock,
    ) -> None:
        self._store = options.store_path
        self.found = BrokerConfig()
        self.error: TieredStoreError | None = None
        self._told: set[str] = set()
        self._clock = clock
        self._interval_ms = config.backup_interval_ms
        self._due_ms = clock.monotonic_ms() + self._interval_ms
        self._backup = TierBackup(
            infer_sizes(options.store_path, config),
            provider,
            options.state_path,
            clock,
            metadata.flush,
            self._read_config,
        )
        self._backup.become_writer(writer)

    def _read_config(self) -> Mapping[str, bytes]:
        self.found = read_broker_config(self._store, CONFIG_FILES)
        for name, reason in self.found.left_out.items():
            if name not in self._told:
                self._told.add(name)
                _log.warning("not backed up: %s", reason)
        return self.found.contents

    def tick(self) -> None:
        """Back up changes if the interval since the last backup has passed. Raises Fenced,
        Unavailable."""
        now_ms = self._clock.monotonic_ms()
        if self._backup.is_enabled and now_ms >= self._due_ms:
            self._due_ms = now_ms + self._interval_ms
            self._backup.run_once()

    def finish(self) -> None:
        """Back up changes at the end of a run. An error is stored in `error` instead of being
        raised."""
        if not self._backup.is_enabled:
            return
        try:
            self._backup.run_once(is_last=True)
        except TieredStoreError as error:
            self.error = error
            _log.warning("the tier has no backup of topics, groups and offsets: %s", error)

    def fields(self) -> dict[str, object]:
        """Return the fields of the JSON report (`docs/cli.md`)."""
        if not self._backup.is_enabled:
            return {"backup": None}
        contents = self.found.contents
        return {
            "backup": {
                "files": sorted(contents),
                "left_out": dict(sorted(self.found.left_out.items())),
                "error": None if self.error is None else str(self.error),
            }
        }
