"""What all handles of one segment in this process share."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from tieredstore.contracts.segment import SegmentId
from tieredstore.providers import naming
from tieredstore.providers.chunks.lives.chain import Chain
from tieredstore.providers.chunks.lives.extents import Extent
from tieredstore.providers.chunks.lives.names import make_key
from tieredstore.providers.chunks.lives.own import Lives
from tieredstore.providers.chunks.lives.views import Views

_incarnations = itertools.count(1)


class Authority(Protocol):
    """In whose name a segment is written: a writer epoch, or nobody's."""

    @property
    def number(self) -> int:
        """0 without an epoch."""
        ...

    @property
    def stamp(self) -> str: ...

    @property
    def view(self) -> int | None:
        """The epoch whose inheritance it goes by; None before it has joined one."""
        ...

    @property
    def lives(self) -> Lives: ...

    def join(self, inheritance: int) -> None:
        """Go by the newest inheritance, when there is no epoch of one's own. Raises Fenced."""
        ...

    def check(self) -> None:
        """Raise Fenced naming the winner when the right is known to be lost."""
        ...

    def confirm(self) -> None:
        """Let all count that was stored before this call, see `WriterEpoch.confirm`."""
        ...


class SegmentState:
    """One segment. `write_lock` serialises what moves the end, `work_lock` (taken first) merging,
    sealing and deletion; `chain` is read and replaced whole.

    To set the chain is to change the segment, by this process. A listing that began before the last
    such change, or that runs while the segment is deleted, is not remembered: so what is remembered
    under an epoch that is held is what is there."""

    __slots__ = (
        "__weakref__",
        "_chain",
        "_chain_lock",
        "_changed_at",
        "_is_leaving",
        "_views",
        "broker_name",
        "folder",
        "id",
        "incarnation",
        "work_lock",
        "write_lock",
    )

    def __init__(self, id: SegmentId, folder: str, views: Views) -> None:
        self._views = views
        self.id = id
        self.folder = folder
        self.broker_name = naming.parse_logical_path(id.path).broker_name
        self._chain: Chain | None = None
        self._changed_at = views.last_deletion
        self._is_leaving = False
        self.incarnation = next(_incarnations)
        self._chain_lock = threading.Lock()
        self.work_lock = threading.RLock()
        self.write_lock = threading.RLock()

    def key(self, name: str) -> str:
        """Return the key of the object that bytes of the segment are in, see `make_key`."""
        return make_key(self.folder, name)

    def name(self, key: str) -> str:
        """Return the name of an object in the segment's folder."""
        return key.removeprefix(f"{self.folder}/")

    @property
    def chain(self) -> Chain | None:
        """What is there; None while that is not known."""
        return self._chain

    @chain.setter
    def chain(self, chain: Chain | None) -> None:
        with self._chain_lock:
            is_doomed = chain is not None and self._views.is_doomed(self.id, chain)
            self._chain = None if is_doomed else chain
            self._changed_at = self._views.count_change()

    def change_chain(self, change: Callable[[Chain], Chain | None]) -> Chain | None:
        """Put what `change` makes of the chain in its place, where it is known and that makes
        anything; nobody else changes it meanwhile. Returns what is known then."""
        with self._chain_lock:
            changed = change(self._chain) if self._chain is not None else None
            if changed is not None:
                self._chain = changed
                self._changed_at = self._views.count_change()
            return self._chain

    def note_write(self, extent: Extent) -> None:
        """Let the chain have a write that was stored at its end. Where the chain is not known, or
        ends elsewhere, the next use lists it: no listing that began before is remembered."""
        with self._chain_lock:
            chain = self._chain
            if chain is not None:
                shown = chain.find_extents(extent.start, 1)
                if shown and shown[0].name == extent.name:
                    return  # by a listing that was made meanwhile
                fits = chain.size_bytes == extent.start and not chain.is_closed
                self._chain = chain.append_extent(extent) if fits else None
            self._changed_at = self._views.count_change()

    def list_chain(self) -> Chain:
        """List the chain; remember it unless the remembered one changed meanwhile. Raises
        Unavailable."""
        former = self._chain
        chain = self._views.list_chain(self.id, self.folder)
        with self._chain_lock:
            if self._chain is former and self._is_fresh(chain):
                self._replace(chain)
        return chain

    def adopt(self, chain: Chain) -> None:
        """Take what another listing showed, unless more is known."""
        with self._chain_lock:
            known = self._chain
            is_newer = known is None or known.epoch < chain.epoch or _is_later(chain, known)
            if is_newer and self._is_fresh(chain):
                self._replace(chain)

    def announce_change(self) -> None:
        """Let the views go by this state, before a request that may change the segment."""
        self._views.note_change(self)

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """While the segment is deleted, know nothing of it; if that succeeds, it is gone."""
        self._is_leaving = True
        try:
            yield
            self._views.note_deletion(self.id)
        finally:
            self._is_leaving = False
            self.chain = None

    def look_again_for_garbage(self, listed: Chain) -> None:
        """Forget the chain when another listing shows garbage that it does not know: what a late
        writer left below it. The next use lists."""
        with self.write_lock:
            known = {found.name for found in self.chain.garbage} if self.chain else set()
            if self.chain is not None and any(f.name not in known for f in listed.garbage):
                self.chain = None

    def get_chain(self, authority: Authority) -> Chain | None:
        """Return the chain when that authority may write behind it, else None."""
        chain = self.chain
        if chain is None or chain.holes or chain.epoch != authority.view:
            return None
        return chain

    def forget(self) -> None:
        """Forget the chain and leave what was cached of the content to the segment that is gone."""
        self.chain = None
        self.incarnation = next(_incarnations)

    def _is_fresh(self, chain: Chain) -> bool:
        is_current = chain.as_of >= self._changed_at and not self._is_leaving
        return is_current and not self._views.is_doomed(self.id, chain)

    def _replace(self, chain: Chain) -> None:
        former = self._chain
        # Made again, or what was seen of a writer that had lost its right is another's now. Those
        # who write without an epoch use a life again; but no segment shrinks
        if former is not None and not chain.goes_on(former):
            self.incarnation = next(_incarnations)
        self._chain = chain


class SegmentStates:
    """The states in use, by folder."""

    def __init__(self, cluster_folder: str, views: Views) -> None:
        self._cluster_folder = cluster_folder
        self._views = views
        self._lock = threading.Lock()
        self._states: weakref.WeakValueDictionary[SegmentId, SegmentState] = (
            weakref.WeakValueDictionary()
        )

    def get_state(self, id: SegmentId) -> SegmentState:
        """Return the state of a segment. Raises Invalid for an impossible name."""
        with self._lock:
            state = self._states.get(id)
            if state is None:
                folder = f"{self._cluster_folder}/{naming.relative_segment_path(id)}"
                state = SegmentState(id, folder, self._views)
                self._states[id] = state
            return state


def _is_later(chain: Chain, known: Chain) -> bool:
    """Whether a chain is that of a segment which was made again."""
    if chain.epoch != known.epoch or chain.born is None:
        return False
    return known.born is None or chain.born > known.born
