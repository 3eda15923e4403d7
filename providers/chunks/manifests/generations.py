"""Generations that an epoch of this process has created."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

from tieredstore.contracts.segment import SegmentId
from tieredstore.providers.chunks.manifests.names import Generation
from tieredstore.providers.chunks.manifests.segment_manifest import NOTHING_BEGUN


class Generations(Protocol):
    """Generations to which one writer (`Authority`) writes."""

    def take(self, id: SegmentId) -> Generation:
        """Return the current generation of a segment."""

    def begin(self, id: SegmentId, position: int) -> Generation:
        """Return the current generation, and record that a write at `position` begins."""

    def make(self) -> Generation:
        """Return a new generation that has no writes yet."""

    def leave(self, id: SegmentId, *, unsure: bool = False) -> None:
        """End the current generation of a segment. The next write begins a new one. `unsure`:
        whether a write in this generation got no response."""

    def has(self, id: SegmentId) -> bool:
        """Return whether this writer has written, or may have written, to a segment since the
        segment's last deletion."""

    def get_begun(self, id: SegmentId) -> Mapping[Generation, int]:
        """Return the first write position of each generation that follows a request without a
        response. From this position on, bytes of earlier generations are invalid, even if no
        listing shows the new write yet."""

    def forget(self, id: SegmentId) -> None:
        """Remove all recorded writes of a segment that a tombstone deletes."""


class EpochGenerations:
    """Generations of an epoch. Each sequence number is used only once. Thread-safe."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._made_count = 0
        self._present: dict[SegmentId, Generation] = {}
        self._written: set[SegmentId] = set()
        self._unsure: set[SegmentId] = set()
        self._begun: dict[SegmentId, dict[Generation, int]] = {}
        self._lock = threading.Lock()

    def take(self, id: SegmentId) -> Generation:
        with self._lock:
            generation = self._present.get(id)
            if generation is None:
                generation = self._present[id] = self._make()
                self._written.add(id)
            return generation

    def begin(self, id: SegmentId, position: int) -> Generation:
        generation = self.take(id)
        with self._lock:
            if id in self._unsure:
                self._begun.setdefault(id, {}).setdefault(generation, position)
        return generation

    def get_begun(self, id: SegmentId) -> Mapping[Generation, int]:
        with self._lock:
            return dict(self._begun.get(id, NOTHING_BEGUN))

    def make(self) -> Generation:
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

    def _make(self) -> Generation:
        self._made_count += 1
        return Generation(self._epoch, self._made_count)


class SharedGeneration:
    """The generation that all writers without an epoch share. If two of them write at the same
    position, a conditional create decides which one succeeds."""

    def __init__(self, epoch: int) -> None:
        self._generation = Generation(epoch, 0)

    def take(self, id: SegmentId) -> Generation:  # noqa: ARG002
        return self._generation

    def begin(self, id: SegmentId, position: int) -> Generation:  # noqa: ARG002
        return self._generation

    def get_begun(self, id: SegmentId) -> Mapping[Generation, int]:  # noqa: ARG002
        return NOTHING_BEGUN

    def make(self) -> Generation:
        return self._generation

    def leave(self, id: SegmentId, *, unsure: bool = False) -> None:
        """No-op: writers without an epoch have only one generation."""

    def has(self, id: SegmentId) -> bool:  # noqa: ARG002
        return False

    def forget(self, id: SegmentId) -> None:
        """No-op: writers without an epoch record no writes."""
