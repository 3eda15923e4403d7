"""OwnLives: the lives that an epoch of this process has made."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

from tieredstore.contracts.segment import SegmentId
from tieredstore.providers.chunks.lives.chain import NOTHING_BEGUN
from tieredstore.providers.chunks.lives.names import Life


class Lives(Protocol):
    """Where an authority writes the objects of segments."""

    def take(self, id: SegmentId) -> Life:
        """Return the life in which a segment is written now."""
        ...

    def begin(self, id: SegmentId, position: int) -> Life:
        """Return that life, for a write at a position."""
        ...

    def make(self) -> Life:
        """Return a life that nothing was written to."""
        ...

    def leave(self, id: SegmentId, *, unsure: bool = False) -> None:
        """Write nothing more into the present life of a segment. unsure: a request for it got no
        answer."""
        ...

    def has(self, id: SegmentId) -> bool:
        """Tell whether the authority has written to a segment since it was last deleted, or may
        have."""
        ...

    def get_begun(self, id: SegmentId) -> Mapping[Life, int]:
        """Return where lives begin to which a write was sent after one that got no answer: what
        earlier lives have there does not count, whether or not these are listed."""
        ...

    def forget(self, id: SegmentId) -> None:
        """Go on as if nothing had been written: a tombstone says so."""
        ...


class OwnLives:
    """A sequence number serves one life of one segment. Thread-safe."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._made_count = 0
        self._present: dict[SegmentId, Life] = {}
        self._written: set[SegmentId] = set()
        self._unsure: set[SegmentId] = set()
        self._begun: dict[SegmentId, dict[Life, int]] = {}
        self._lock = threading.Lock()

    def take(self, id: SegmentId) -> Life:
        with self._lock:
            life = self._present.get(id)
            if life is None:
                life = self._present[id] = self._make()
                self._written.add(id)
            return life

    def begin(self, id: SegmentId, position: int) -> Life:
        life = self.take(id)
        with self._lock:
            if id in self._unsure:
                self._begun.setdefault(id, {}).setdefault(life, position)
        return life

    def get_begun(self, id: SegmentId) -> Mapping[Life, int]:
        with self._lock:
            return dict(self._begun.get(id, NOTHING_BEGUN))

    def make(self) -> Life:
        with self._lock:
            return self._make()

    def leave(self, id: SegmentId, *, unsure: bool = False) -> None:
        with self._lock:
            self._present.pop(id, None)
            if unsure:
                self._unsure.add(id)

    def has(self, id: SegmentId) -> bool:
        with self._lock:
            return id in self._written or id in self._unsure

    def forget(self, id: SegmentId) -> None:
        with self._lock:
            self._present.pop(id, None)
            self._written.discard(id)
            self._unsure.discard(id)
            self._begun.pop(id, None)

    def _make(self) -> Life:
        self._made_count += 1
        return Life(self._epoch, self._made_count)


class SharedLife:
    """The one life of all who write without an epoch of their own: which of them was first tells
    the store's condition."""

    def __init__(self, epoch: int) -> None:
        self._life = Life(epoch, 0)

    def take(self, id: SegmentId) -> Life:  # noqa: ARG002
        return self._life

    def begin(self, id: SegmentId, position: int) -> Life:  # noqa: ARG002
        return self._life

    def get_begun(self, id: SegmentId) -> Mapping[Life, int]:  # noqa: ARG002
        return NOTHING_BEGUN

    def make(self) -> Life:
        return self._life

    def leave(self, id: SegmentId, *, unsure: bool = False) -> None:
        """Do nothing: there is no other."""

    def has(self, id: SegmentId) -> bool:  # noqa: ARG002
        return False

    def forget(self, id: SegmentId) -> None:
        """Do nothing: nothing is known."""
