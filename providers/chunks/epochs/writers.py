"""Authorities of this process for the broker prefixes of a tier: owned epochs, or no epoch."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tieredstore.contracts.objects import ObjectClient
from tieredstore.contracts.tier_identity import EpochRecord, TierMark
from tieredstore.errors import Invalid
from tieredstore.providers import naming
from tieredstore.providers.chunks.epochs.epoch import (
    WRITER_FOLDER,
    ChunkWriterEpoch,
    UnheldAuthority,
    make_own_name,
)
from tieredstore.providers.chunks.epochs.marks import (
    describe_last_writer,
    find_stores,
    read_holder,
    read_marks,
)
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority


class Writers:
    """Writer epochs that this process has acquired, by broker. A lost or released epoch stays in
    the list to reject later writes."""

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
        """Write only under the given epoch, unless this process owns an epoch."""
        with self._lock:
            self._unheld[broker_name] = UnheldAuthority(f"0:{self._owner}", view=number)

    def describe_last(self, broker_name: str) -> str | None:
        """Return a description of the last writer below a broker prefix, or None."""
        naming.check_name(broker_name, "broker name")
        folder = f"{self._cluster_folder}/{broker_name}/{WRITER_FOLDER}"
        return describe_last_writer(self._client, folder)

    def read_mark(self, broker_name: str, since: int) -> TierMark:
        """Read identity and writers of a broker prefix. Costs a LIST, and a GET for each epoch from
        `since`. Without an epoch, it costs a second LIST."""
        naming.check_name(broker_name, "broker name")
        folder = f"{self._cluster_folder}/{broker_name}/{WRITER_FOLDER}"
        number, stores = find_stores(self._client, folder, since)
        if not number:
            prefix = f"{self._cluster_folder}/{broker_name}/"
            return TierMark(is_empty=next(iter(self._client.list(prefix)), None) is None)
        return read_marks(number, since, stores, lambda it: read_holder(self._client, folder, it))

    def get_authority(self, broker_name: str) -> Authority:
        """Return the authority with which this process writes to the broker's prefix. Raises
        Invalid like `check_may_write`."""
        self.check_may_write()
        epoch = self._epochs.get(broker_name)
        if epoch is not None:
            return epoch
        with self._lock:
            return self._unheld.setdefault(broker_name, UnheldAuthority(f"0:{self._owner}"))

    def get_held_epochs(self) -> dict[str, ChunkWriterEpoch]:
        """Return the epochs that this process owns, unless it has lost them without noticing."""
        with self._lock:
            return {name: epoch for name, epoch in self._epochs.items() if not epoch.is_lost}

    def check_held(self) -> None:
        """Raise Fenced if an epoch was lost or released."""
        with self._lock:
            epochs = list(self._epochs.values())
        for epoch in epochs:
            epoch.check()

    def close(self) -> None:
        """Stop the heartbeats of all epochs."""
        with self._lock:
            epochs = list(self._epochs.values())
        for epoch in epochs:
            epoch.stop_renewing()

    def check_may_write(self) -> None:
        """Raise Invalid if a second writer could not be fenced, unless fencing is disabled."""
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
            f"{self._client.url}: {why}, so a second writer would not be noticed. It is written "
            "only with tieredStoreChunkFencing=none (fencing=none in a URL)"
        )
