"""Who may write below which broker prefix of a tier, as far as this process knows."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tieredstore.contracts.epoch_record import EpochRecord
from tieredstore.errors import Invalid
from tieredstore.providers import naming
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.epochs.epoch import (
    WRITER_FOLDER,
    ChunkWriterEpoch,
    UnheldAuthority,
    describe_last_writer,
    make_own_name,
)
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority


class Writers:
    """The writer epochs that were acquired, by broker. An epoch that was lost or released stays:
    what is still written in its name is refused."""

    def __init__(
        self,
        client: ObjectClient,
        cluster_folder: str,
        settings: ChunkSettings,
        owner: str | None,
    ) -> None:
        self._client = client
        self._cluster_folder = cluster_folder
        self._settings = settings
        self._owner = owner or make_own_name(settings.clock.now_ms())
        self._epochs: dict[str, ChunkWriterEpoch] = {}
        self._lock = threading.Lock()
        self._unheld: dict[str, UnheldAuthority] = {}

    def acquire(
        self,
        broker_name: str,
        before_release: Callable[[ChunkWriterEpoch], None],
        leave: Callable[[ChunkWriterEpoch], None],
        *,
        take_over: bool,
        record: EpochRecord | None,
    ) -> ChunkWriterEpoch:
        """Acquire an epoch, see `ChunkWriterEpoch.acquire`."""
        naming.check_name(broker_name, "broker name")
        self.check_may_write()
        epoch = ChunkWriterEpoch.acquire(
            self._client,
            f"{self._cluster_folder}/{broker_name}/{WRITER_FOLDER}",
            self._owner,
            self._settings,
            before_release,
            leave,
            take_over=take_over,
            record=record,
        )
        with self._lock:
            self._epochs[broker_name] = epoch
        return epoch

    def help(self, broker_name: str, number: int) -> None:
        """Write beside that epoch alone, where this process holds none."""
        with self._lock:
            self._unheld[broker_name] = UnheldAuthority(f"0:{self._owner}", view=number)

    def describe_last(self, broker_name: str) -> str | None:
        """Describe the last writer below a broker prefix; None when there was none."""
        naming.check_name(broker_name, "broker name")
        folder = f"{self._cluster_folder}/{broker_name}/{WRITER_FOLDER}"
        return describe_last_writer(self._client, folder)

    def get_authority(self, broker_name: str) -> Authority:
        """Return the authority with which this process writes there. Raises Invalid as
        `check_may_write`."""
        self.check_may_write()
        epoch = self._epochs.get(broker_name)
        if epoch is not None:
            return epoch
        with self._lock:
            return self._unheld.setdefault(broker_name, UnheldAuthority(f"0:{self._owner}"))

    def get_held_epochs(self) -> dict[str, ChunkWriterEpoch]:
        """Return the epochs held, as far as is known."""
        with self._lock:
            return {name: epoch for name, epoch in self._epochs.items() if not epoch.is_lost}

    def check_held(self) -> None:
        """Raise Fenced when an epoch was lost or released."""
        with self._lock:
            epochs = list(self._epochs.values())
        for epoch in epochs:
            epoch.check()

    def close(self) -> None:
        """Give no more signs of life."""
        with self._lock:
            epochs = list(self._epochs.values())
        for epoch in epochs:
            epoch.stop_renewing()

    def check_may_write(self) -> None:
        """Raise Invalid where nothing would fence a second writer, unless that is wanted."""
        limits = self._client.limits
        if not self._settings.fencing or (limits.conditional and limits.exclusive):
            return
        why = (
            f"of two creates with {limits.condition} at the same time both may succeed here, as "
            "far as its vendor says"
            if limits.conditional
            else "this store creates nothing conditionally"
        )
        raise Invalid(
            f"{self._client.url}: {why}, so a second writer would not be noticed; it is written "
            "only with tieredStoreChunkFencing=none (fencing=none in a URL)"
        )
