"""The newest known epoch manifest of each broker."""

from __future__ import annotations

import threading

from tieredstore.contracts.objects import ObjectClient
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.providers.chunks.epochs.fencing import SharedFenceCheck
from tieredstore.providers.chunks.manifests.epoch_manifest import (
    INHERITED_FOLDER,
    EpochManifest,
    decode_epoch_manifest,
    decompress,
    parse_epoch_manifest_name,
)
from tieredstore.providers.chunks.settings import ChunkSettings

MAX_STARTS = 8
"""Maximum number of restarts of an operation because newer epoch manifests appeared."""
_READ_BYTES = 8 << 20
_MAX_OBJECT_BYTES = 64 << 20


class Superseded(Exception):
    """An object of an epoch manifest is missing. Either a newer manifest exists, or the object was
    lost."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class NewestManifests:
    """Newest manifests of all brokers of a tier. Concurrent callers share a request.
    Thread-safe."""

    def __init__(self, client: ObjectClient, cluster_folder: str, settings: ChunkSettings) -> None:
        self._client = client
        self._cluster_folder = cluster_folder
        self._settings = settings
        self._lock = threading.Lock()
        self._known: dict[str, EpochManifest] = {}
        self._fence_checks: dict[str, SharedFenceCheck] = {}

    def folder(self, broker_name: str) -> str:
        """Return the folder of a broker's epoch manifests."""
        return f"{self._cluster_folder}/{broker_name}/{INHERITED_FOLDER}"

    def take(self, broker_name: str) -> EpochManifest:
        """Return the newest known epoch manifest. If none is known, search for it. Raises
        Unavailable."""
        for _ in range(MAX_STARTS):
            known = self._known.get(broker_name)
            if known is not None:
                return known
            self._check_epoch(broker_name)
        raise self.make_restless_error(broker_name)

    def find_number(self, broker_name: str) -> int:
        """Return the number of the newest manifest in the tier. 0 means none. Raises
        Unavailable."""
        number = 0
        for info in self._client.list(f"{self.folder(broker_name)}/"):
            found = parse_epoch_manifest_name(info.key.rpartition("/")[2])
            if found is not None and found.is_main:
                number = max(number, found.number)
        return number

    def is_newest(self, broker_name: str, epoch_manifest: EpochManifest) -> bool:
        """Check, by a request sent after this call, that a manifest is still the newest one. Raises
        Unavailable."""
        self._check_epoch(broker_name)
        known = self._known.get(broker_name)
        return known is not None and known.number == epoch_manifest.number

    def read(self, broker_name: str, name: str) -> bytes | None:
        """Read an object of the folder. Returns None if the object is missing. Raises Corrupt,
        Unavailable."""
        try:
            return self._read(broker_name, name)
        except Superseded:
            return None

    def forget(self, broker_name: str) -> None:
        """Discard the cached manifest, so that the next call searches for the newest one."""
        self._known.pop(broker_name, None)

    def start_over(self, broker_name: str, number: int, gone: Superseded) -> None:
        """Find a newer epoch manifest after an object of the manifest of epoch `number` was
        missing. `gone`: error that names the missing object. Raises Corrupt if no later epoch
        manifest exists, Unavailable."""
        self.forget(broker_name)
        if self.take(broker_name).number == number:
            raise Corrupt(
                f"{gone.key}: a part of the manifest of epoch {number} is missing, so the valid "
                "objects of the broker are unknown. Restore this object",
                path=gone.key,
            )

    def make_restless_error(self, broker_name: str) -> Unavailable:
        """Return the error for an operation that newer epoch manifests restarted too often."""
        return Unavailable(f"{self.folder(broker_name)}: writers change faster than they are read")

    def _check_epoch(self, broker_name: str) -> None:
        with self._lock:
            fence_check = self._fence_checks.get(broker_name)
            if fence_check is None:
                fence_check = self._fence_checks[broker_name] = SharedFenceCheck(
                    lambda: self._find(broker_name)
                )
        fence_check.wait()

    def _find(self, broker_name: str) -> None:
        for _ in range(MAX_STARTS):
            number = self.find_number(broker_name)
            known = self._known.get(broker_name)
            if known is not None and known.number == number:
                return
            try:
                self._known[broker_name] = self.load(broker_name, number)
            except Superseded:
                continue
            return
        raise self.make_restless_error(broker_name)

    def load(self, broker_name: str, number: int) -> EpochManifest:
        """Read the manifest of an epoch. Raises Superseded if it is missing, Unavailable,
        Corrupt."""
        if not number:
            return EpochManifest(0)
        return decode_epoch_manifest(number, lambda name: self._read(broker_name, name))

    def _read(self, broker_name: str, name: str) -> bytes:
        key = f"{self.folder(broker_name)}/{name}"
        content = b""
        problem: TieredStoreError | None = None
        with self._settings.limit_retries():
            for attempt in self._settings.attempts():
                try:
                    piece = self._client.get_range(key, len(content), _READ_BYTES)
                except Unavailable as error:
                    problem = error
                    self._settings.pause(attempt)
                    continue
                if piece is None:
                    raise Superseded(key)
                content += piece
                if decompress(content, key)[1]:
                    return content
                if not piece or len(content) > _MAX_OBJECT_BYTES:
                    raise Corrupt(f"{key}: ends after {len(content)} bytes", path=key)
        raise problem or Unavailable(f"{key}: not read whole", path=key)
