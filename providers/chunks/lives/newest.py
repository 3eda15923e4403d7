"""NewestInheritances: the newest inheritance of each broker, as far as this process has looked."""

from __future__ import annotations

import threading

from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.epochs.looks import SharedLook
from tieredstore.providers.chunks.lives.inheritance import (
    INHERITED_FOLDER,
    Inheritance,
    decode_inheritance,
    decompress,
    parse_inherited_name,
)
from tieredstore.providers.chunks.settings import ChunkSettings

MAX_STARTS = 8
"""So often something is begun anew because there is a newer inheritance."""
_READ_BYTES = 8 << 20
_MAX_OBJECT_BYTES = 64 << 20


class Superseded(Exception):
    """An object of an inheritance is not there any more: there is a newer one, or it was lost."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class NewestInheritances:
    """One for all brokers of a tier. Who looks at the same time shares the look. Thread-safe."""

    def __init__(self, client: ObjectClient, cluster_folder: str, settings: ChunkSettings) -> None:
        self._client = client
        self._cluster_folder = cluster_folder
        self._settings = settings
        self._lock = threading.Lock()
        self._known: dict[str, Inheritance] = {}
        self._looks: dict[str, SharedLook] = {}

    def folder(self, broker_name: str) -> str:
        """Return the folder of a broker's inheritances."""
        return f"{self._cluster_folder}/{broker_name}/{INHERITED_FOLDER}"

    def take(self, broker_name: str) -> Inheritance:
        """Return the newest one that is known, after a look when none is. Raises Unavailable."""
        for _ in range(MAX_STARTS):
            known = self._known.get(broker_name)
            if known is not None:
                return known
            self._look(broker_name)
        raise self.make_restless_error(broker_name)

    def find_number(self, broker_name: str) -> int:
        """Look for the newest one; 0: there is none. Raises Unavailable."""
        number = 0
        for info in self._client.list(f"{self.folder(broker_name)}/"):
            found = parse_inherited_name(info.key.rpartition("/")[2])
            if found is not None and found.is_main:
                number = max(number, found.number)
        return number

    def is_newest(self, broker_name: str, inheritance: Inheritance) -> bool:
        """Look, by a request sent after this call, whether it is still the newest. Raises
        Unavailable."""
        self._look(broker_name)
        known = self._known.get(broker_name)
        return known is not None and known.number == inheritance.number

    def read(self, broker_name: str, name: str) -> bytes | None:
        """Read an object of the folder; None when it is not there. Raises Corrupt, Unavailable."""
        try:
            return self._read(broker_name, name)
        except Superseded:
            return None

    def forget(self, broker_name: str) -> None:
        """Let the next one who takes it look."""
        self._known.pop(broker_name, None)

    def start_over(self, broker_name: str, number: int, gone: Superseded) -> None:
        """Look for the inheritance that came after that of epoch `number`. Raises Corrupt where
        none did, Unavailable."""
        self.forget(broker_name)
        if self.take(broker_name).number == number:
            raise Corrupt(
                f"{gone.key}: a part of what epoch {number} inherits is not there, so which "
                "objects of the broker count cannot be told; put it back",
                path=gone.key,
            )

    def make_restless_error(self, broker_name: str) -> Unavailable:
        """Make the error of something that was begun anew too often."""
        return Unavailable(f"{self.folder(broker_name)}: writers change faster than they are read")

    def _look(self, broker_name: str) -> None:
        with self._lock:
            look = self._looks.get(broker_name)
            if look is None:
                look = self._looks[broker_name] = SharedLook(lambda: self._find(broker_name))
        look.wait()

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

    def load(self, broker_name: str, number: int) -> Inheritance:
        """Read that of an epoch. Raises Superseded when it is not there, Unavailable, Corrupt."""
        if not number:
            return Inheritance(0)
        return decode_inheritance(number, lambda name: self._read(broker_name, name))

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
