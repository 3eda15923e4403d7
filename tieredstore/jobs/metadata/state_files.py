"""Replacement of a metadata file in one repeatable step."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec

from tieredstore import registry
from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.disk.errors import classify_os_error
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.sync import sync_folder
from tieredstore.errors import Invalid
from tieredstore.jobs.target import check_directory, refuse_broker
from tieredstore.scan.location import METADATA_FILE

_STAGING = "config/.rebuild-metadata"
_NAMES = ("", ".bak", ".journal")
"""Suffixes of the names of all files that belong to the metadata."""


class StateFiles:
    """Metadata files of a state directory. `config`: configuration of its tier."""

    def __init__(self, config: StoreConfig, state: Path) -> None:
        self._config = config
        self._state = state
        self.main = state / METADATA_FILE

    def list_present(self) -> list[Path]:
        """Return the existing files that are not empty."""
        files = (self._make_path(name) for name in _NAMES)
        return [file for file in files if file.exists() and file.stat().st_size]

    def check_free(self) -> None:
        """Raise Fenced if a broker runs on the directory, Invalid if the path cannot be a state
        directory."""
        check_directory(self._state)
        refuse_broker(self._state)

    def replace(
        self, fill: Callable[[MetadataStore], None], clock: Clock, *, force: bool
    ) -> list[Path]:
        """Atomically replace the metadata by the content that `fill` puts into an empty store.
        Raises Invalid if other metadata exists. With `force`, it is kept under names with the
        clock's time, which are returned. A repeated call with the same time and content has the
        same result. Raises Unavailable."""
        staging = self._state / _STAGING
        suffix = f".replaced-{clock.now_ms()}"
        try:
            staged = self._stage_metadata(staging, fill, clock)
            present = self.list_present()
            if self.main not in present or self.main.read_bytes() != staged.read_bytes():
                if present and not force:
                    raise self.refusal(present)
                for file in present:
                    kept = file.with_name(file.name + suffix)
                    if not kept.exists():
                        kept.hardlink_to(file)
                staged.replace(self.main)
                sync_folder(self.main.parent)
            # An older backup would be used if the main file breaks.
            FILES.replace_file(self._make_path(".bak"), self.main.read_bytes())
            self._make_path(".journal").unlink(missing_ok=True)
            shutil.rmtree(staging)
            sync_folder(self.main.parent)
        except OSError as error:
            raise classify_os_error(error)(
                f"state {self._state}: cannot be written: {error.strerror or error}",
                path=str(error.filename or self._state),
            ) from error
        return sorted(self.main.parent.glob(f"{self.main.name}*{suffix}"))

    def refusal(self, present: Sequence[Path]) -> Invalid:
        return Invalid(
            f"state {self._state}: has metadata already ({present[0].name}). Give another "
            "directory, or have it replaced with --force, which keeps it beside",
            path=str(present[0]),
        )

    def _stage_metadata(
        self, staging: Path, fill: Callable[[MetadataStore], None], clock: Clock
    ) -> Path:
        shutil.rmtree(staging, ignore_errors=True)
        config = msgspec.structs.replace(self._config, store_path_root_dir=str(staging))
        store = cast("MetadataStore", registry.metadata_store(config, clock))
        store.load()
        try:
            fill(store)
            store.flush()
            if not (staging / METADATA_FILE).exists():
                store.destroy()  # Nothing was filled in. An empty store is written as well.
        finally:
            store.close()
        staged = staging / METADATA_FILE
        if not staged.exists():
            raise Invalid(
                f"{config.metadata_service_provider}: keeps no {METADATA_FILE}. Only that file can "
                "be rebuilt"
            )
        return staged

    def _make_path(self, name: str) -> Path:
        return self.main.with_name(self.main.name + name)
