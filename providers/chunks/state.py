"""What all handles of one segment in this process share."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

from tieredstore.contracts.segment import SegmentId
from tieredstore.providers import naming
from tieredstore.providers.chunks.chain import Chain, read_chain
from tieredstore.providers.chunks.client import ObjectClient

_incarnations = itertools.count(1)
_MAX_LOOKS = 3


class Authority(Protocol):
    """In whose name a segment is written: a writer epoch, or nobody's."""

    @property
    def number(self) -> int:
        """0 without an epoch."""
        ...

    @property
    def stamp(self) -> str: ...

    @property
    def trusted_from_ms(self) -> int:
        """What was seen of a segment before then is to be seen again before the next write."""
        ...

    @property
    def confirmed_ms(self) -> int:
        """When the store last said that nobody took the right away; own clock."""
        ...

    def check(self) -> None:
        """Raise Fenced naming the winner when the right is lost, Unavailable when that cannot be
        found out."""
        ...

    def confirm(self) -> None:
        """Let all count that was stored before this call, see `WriterEpoch.confirm`."""
        ...


class SegmentState:
    """One segment. `write_lock` serialises what moves the end, `work_lock` (taken first) merging,
    sealing and deletion; `chain` is read and replaced whole."""

    __slots__ = (
        "__weakref__",
        "_chain_lock",
        "_client",
        "_monotonic_ms",
        "broker_name",
        "chain",
        "folder",
        "id",
        "incarnation",
        "work_lock",
        "write_lock",
    )

    def __init__(
        self, id: SegmentId, folder: str, client: ObjectClient, monotonic_ms: Callable[[], int]
    ) -> None:
        self._client = client
        self._monotonic_ms = monotonic_ms
        self.id = id
        self.folder = folder
        self.broker_name = naming.parse_logical_path(id.path).broker_name
        self.chain: Chain | None = None
        self.incarnation = next(_incarnations)
        self._chain_lock = threading.Lock()
        self.work_lock = threading.RLock()
        self.write_lock = threading.RLock()

    def key(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def list_chain(self) -> Chain:
        """List the chain; remember it unless the remembered one changed meanwhile. Raises
        Unavailable."""
        former = self.chain
        chain = Chain()
        for _ in range(_MAX_LOOKS):
            begin_ms = self._monotonic_ms()
            chain = read_chain(self._client.list(f"{self.folder}/"), self.folder, begin_ms)
            if not chain.holes:
                break
            # A listing is no snapshot: what was merged and deleted while it ran looks lost.
        with self._chain_lock:
            if self.chain is former:
                if former is not None and chain.size_bytes < former.size_bytes:
                    self.forget()  # a segment never shrinks: this is another one of that name
                self.chain = chain
        return chain

    def adopt(self, chain: Chain) -> None:
        """Take what another listing showed, unless more is known."""
        with self._chain_lock:
            if self.chain is None:
                self.chain = chain

    def look_again_for_garbage(self, listed: Chain) -> None:
        """Forget the chain when another listing shows garbage that it does not know: what a late
        writer left below it. The next use lists."""
        with self.write_lock:
            known = {found.name for found in self.chain.garbage} if self.chain else set()
            if self.chain is not None and any(f.name not in known for f in listed.garbage):
                self.chain = None

    def get_trusted_chain(self, authority: Authority) -> Chain | None:
        """Return the chain when it was seen since that right is held without a pause, else None."""
        chain = self.chain
        if chain is None or chain.holes or chain.seen_ms < authority.trusted_from_ms:
            return None
        return chain

    def forget(self) -> None:
        """Forget the chain and leave what was cached of the content to the segment that is gone."""
        self.chain = None
        self.incarnation = next(_incarnations)


class SegmentStates:
    """The states in use, by folder."""

    def __init__(
        self, client: ObjectClient, cluster_folder: str, monotonic_ms: Callable[[], int]
    ) -> None:
        self._client = client
        self._cluster_folder = cluster_folder
        self._monotonic_ms = monotonic_ms
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
                state = SegmentState(id, folder, self._client, self._monotonic_ms)
                self._states[id] = state
            return state
