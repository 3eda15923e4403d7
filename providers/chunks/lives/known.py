"""KnownChains: what the holder of an epoch knows of all segments below its broker's prefix."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

from tieredstore.contracts.segment import SegmentId
from tieredstore.providers.chunks.lives.chain import Chain
from tieredstore.providers.chunks.lives.left import Left


class KnownSegment(Protocol):
    """chain: what is there; None while nobody can tell without a listing."""

    @property
    def id(self) -> SegmentId: ...

    @property
    def chain(self) -> Chain | None: ...


class KnownChains:
    """The chains that epoch `number` has inherited, and the segments that it has changed since, or
    may have. Nobody else changes any while the epoch is held, so together they are all that a
    listing would show. Thread-safe."""

    def __init__(self, number: int, inherited: Mapping[SegmentId, Chain]) -> None:
        self._number = number
        self._inherited = dict(inherited)
        self._changed: dict[SegmentId, KnownSegment] = {}
        self._lock = threading.Lock()

    def note_change(self, segment: KnownSegment) -> None:
        """Go by the segment itself from now on, before anything is asked for that changes it."""
        if segment.id in self._changed:
            return
        with self._lock:
            self._changed[segment.id] = segment
            self._inherited.pop(segment.id, None)

    def note_deletion(self, id: SegmentId) -> None:
        """Forget a segment that is surely gone."""
        with self._lock:
            self._changed.pop(id, None)
            self._inherited.pop(id, None)

    def take_stock(self, *, with_holes: bool = False) -> Left:
        """Say what is there; for heirs after the epoch has ceased to acknowledge anything.
        with_holes: take a hole that a listing had for one."""
        with self._lock:
            chains, changed = dict(self._inherited), dict(self._changed)
        for id, segment in changed.items():  # noqa: A001 - the contract's name
            chain = segment.chain
            if chain is not None:
                chains[id] = chain
        sure = {
            id: chain
            for id, chain in chains.items()  # noqa: A001
            # A hole may be one that only the listing had
            if chain.epoch == self._number and (with_holes or not chain.holes)
        }
        return Left(sure, tuple(id for id in {**chains, **changed} if id not in sure))  # noqa: A001
