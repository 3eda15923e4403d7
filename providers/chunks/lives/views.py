"""Views: segments as the newest inheritance of their broker lets them be seen.

A reader takes the newest inheritance, lists, and looks again whether it is still the newest: while
it was, no epoch below had anything to say, and that epoch's own lives are in the listing. The
holder of an epoch goes by its own inheritance, which it makes before its first write, and looks
whether the next epoch was claimed: who comes later collects what the former view shows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import Busy, Corrupt, Fenced, TieredStoreError, Unavailable
from tieredstore.providers import naming
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.lives.chain import (
    NOTHING_BEGUN,
    NOTHING_INHERITED,
    Chain,
    InheritedSegment,
)
from tieredstore.providers.chunks.lives.group_listing import GroupListings
from tieredstore.providers.chunks.lives.inheritance import (
    Inheritance,
    encode_inheritance,
    inherited_name,
    parse_inherited_name,
)
from tieredstore.providers.chunks.lives.known import KnownChains, KnownSegment
from tieredstore.providers.chunks.lives.left import Left, decode_left, encode_left
from tieredstore.providers.chunks.lives.listing import Changes, SegmentListings
from tieredstore.providers.chunks.lives.names import Life, find_group
from tieredstore.providers.chunks.lives.newest import MAX_STARTS, NewestInheritances, Superseded
from tieredstore.providers.chunks.lives.own import Lives
from tieredstore.providers.chunks.settings import ChunkSettings

_log = logging.getLogger(__name__)


class HeldEpoch(Protocol):
    """The part of a writer epoch that concerns its view."""

    @property
    def number(self) -> int: ...

    @property
    def stamp(self) -> str: ...

    @property
    def is_lost(self) -> bool: ...

    @property
    def lives(self) -> Lives: ...

    @property
    def has_helpers(self) -> bool: ...

    def check(self) -> None: ...

    def confirm(self) -> None: ...


@dataclass(slots=True)
class _Own:
    """An epoch that this process has acquired. known: what it knows of the segments, said: what it
    inherits, and objects: those that say so, as soon as that was found out: what was sent once is
    never changed. inheritance: what it inherits, once they are made. is_listed: somebody was told
    what is known of all segments."""

    epoch: HeldEpoch
    known: KnownChains | None = None
    said: Inheritance | None = None
    objects: list[tuple[str, bytes]] | None = None
    inheritance: Inheritance | None = None
    is_listed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Views:
    """One for all brokers of a tier. Thread-safe."""

    def __init__(self, client: ObjectClient, cluster_folder: str, settings: ChunkSettings) -> None:
        self._client = client
        self._cluster_folder = cluster_folder
        self._settings = settings
        self._lock = threading.Lock()
        self._own: dict[str, _Own] = {}
        self._doomed: dict[str, frozenset[str]] = {}
        self._changes = Changes()
        self.last_deletion = 0
        self._newest = NewestInheritances(client, cluster_folder, settings)
        self.groups = GroupListings(client, cluster_folder, settings)
        self._listings = SegmentListings(
            client, cluster_folder, self._changes, self._get_begun, self.groups
        )

    def begin(self, broker_name: str, epoch: HeldEpoch) -> None:
        """Go by what this epoch inherits, from now on."""
        with self._lock:
            self._own[broker_name] = _Own(epoch)

    def expect_queues(self, broker_name: str, paths: Sequence[str]) -> None:
        """Divide listings of a broker by these paths of queues, too."""
        self._listings.expected[broker_name] = tuple(paths)

    def prepare(self, broker_name: str) -> Inheritance:
        """Return what the epoch held inherits, made before when that was not so yet; without an
        epoch what the newest one does. Raises Unavailable, Fenced."""
        own = self._find_own(broker_name)
        if own is None:
            return self._newest.take(broker_name)
        if own.inheritance is None:
            self._inherit(broker_name, own)
        assert own.inheritance is not None
        return own.inheritance

    def is_prepared(self, broker_name: str) -> bool:
        """Tell whether an epoch is held that has said what it inherits."""
        own = self._find_own(broker_name)
        return own is not None and own.inheritance is not None

    def has_groups(self, broker_name: str) -> bool:
        """Tell whether the epoch held may have bytes in group objects."""
        own = self._find_own(broker_name)
        return own is not None and own.inheritance is not None and own.inheritance.has_groups

    def knows_absent(self, id: SegmentId) -> bool:
        """Tell, without a request, whether the epoch held neither inherits nor writes a segment."""
        own = self._find_own(id.path.partition("/")[0])
        if own is None or own.inheritance is None:
            return False
        return own.inheritance.find(id) == NOTHING_INHERITED and not own.epoch.lives.has(id)

    def find_inherited(self, id: SegmentId) -> InheritedSegment:
        """Find, without a request, what the epoch held inherits of a segment, be it readable or
        not."""
        own = self._find_own(id.path.partition("/")[0])
        if own is None or own.inheritance is None:
            return NOTHING_INHERITED
        return own.inheritance.find(id)

    # What this process changes

    def count_change(self) -> int:
        """Return a number greater than those of all listings that have begun."""
        return self._changes.add()

    def note_change(self, segment: KnownSegment) -> None:
        """Go by that segment itself, when the epoch held ends: it may be changed now."""
        own = self._find_own(segment.id.path.partition("/")[0])
        if own is not None and own.known is not None:
            own.known.note_change(segment)

    def take_stock(self, broker_name: str) -> Left:
        """Tell what is known of the segments of the epoch held, holes and all. Nothing without
        one."""
        own = self._find_own(broker_name)
        if own is None or own.known is None:
            return Left({})
        return own.known.take_stock(with_holes=True)

    def doom(self, broker_name: str, groups: AbstractSet[str]) -> None:
        """Remember no chain, from now on, that needs one of these groups, which are to be deleted.
        Those named before are not any more."""
        self._doomed[broker_name] = frozenset(groups)

    def is_doomed(self, id: SegmentId, chain: Chain) -> bool:
        """Tell whether a chain needs a group that is to be deleted."""
        doomed = self._doomed and self._doomed.get(id.path.partition("/")[0])
        if not doomed:
            return False
        return any(
            extent.is_grouped and find_group(extent.name) in doomed for extent in chain.extents
        )

    def note_deletion(self, id: SegmentId) -> None:
        """Know of a segment that it is gone."""
        self.last_deletion = self.count_change()
        own = self._own.get(id.path.partition("/")[0])
        if own is not None and own.known is not None:
            own.known.note_deletion(id)

    def leave(self, broker_name: str, epoch: HeldEpoch) -> None:
        """Say what there is below an epoch, which acknowledges nothing any more, so that the next
        one need not list it. Nothing where that would save nothing. Raises what the client
        raises."""
        own = self._own.get(broker_name)
        if own is None or own.epoch is not epoch or own.known is None or own.inheritance is None:
            return
        left, own.known = own.known.take_stock(), None
        if not left.saves_listing:
            _log.info("%s: %d segments are to be listed anew", broker_name, len(left.unsure))
            return
        has_groups = own.inheritance.has_groups
        for name, content in encode_left(epoch.number, left, has_groups=has_groups):
            key = f"{self._newest.folder(broker_name)}/{name}"
            self._client.put_if_absent(key, [content], {"w": epoch.stamp})

    # Listings

    def list_chain(self, id: SegmentId, folder: str) -> Chain:
        """List the chain of one segment. Raises Unavailable."""
        broker_name = id.path.partition("/")[0]
        for _ in range(MAX_STARTS):
            inheritance = self._take(broker_name)
            try:
                chain = self._listings.read_segment(id, folder, inheritance)
            except Superseded as gone:
                self._newest.start_over(broker_name, inheritance.number, gone)
                continue
            if self._holds_still(broker_name, inheritance):
                self._check_said(broker_name, inheritance, [chain])
                return chain
        raise self._newest.make_restless_error(broker_name)

    def list_chains(self, prefix: str, *, may_be_known: bool = False) -> dict[SegmentId, Chain]:
        """List the chains of all segments below a prefix of the provider's listings, those too of
        which there is only garbage. may_be_known: what the epoch held has found out at its
        beginning need not be listed again, but for garbage that nobody knows of. Raises
        Unavailable, Invalid."""
        parts = naming.parse_prefix(prefix)
        if len(parts) > 1:
            return self._list_broker(parts[0], "/".join(parts))
        found: dict[SegmentId, Chain] = {}
        for broker_name in parts or self._listings.list_brokers():
            known = self._list_known(broker_name) if may_be_known else None
            found |= self._list_broker(broker_name, broker_name) if known is None else known
        return found

    def keep(self, broker_name: str) -> list[str]:
        """Put back what is gone of what the epoch held inherits, and return the keys of what the
        former ones do, which nobody goes by. Raises Fenced, Unavailable."""
        own = self._find_own(broker_name)
        if own is None or own.inheritance is None or own.objects is None:
            return []
        folder = self._newest.folder(broker_name)
        names = {info.key.removeprefix(f"{folder}/") for info in self._client.list(f"{folder}/")}
        for name, content in own.objects:
            if name not in names:
                own.epoch.confirm()  # else its successor has deleted it
                _log.error("%s/%s: it was gone, and is put back", folder, name)
                self._make(f"{folder}/{name}", content, own.epoch)
        parsed = [(name, parse_inherited_name(name)) for name in sorted(names)]
        number = own.epoch.number
        return [f"{folder}/{name}" for name, found in parsed if found and found.number < number]

    # Whose inheritance counts

    def _get_begun(self, id: SegmentId, inheritance: Inheritance) -> Mapping[Life, int]:
        own = self._find_own(id.path.partition("/")[0])
        is_own = own is not None and own.inheritance is inheritance
        return own.epoch.lives.get_begun(id) if own is not None and is_own else NOTHING_BEGUN

    def _find_own(self, broker_name: str) -> _Own | None:
        own = self._own.get(broker_name)
        return own if own is not None and not own.epoch.is_lost else None

    def _take(self, broker_name: str) -> Inheritance:
        """What the epoch held inherits, made now if need be: by the newest one bytes could count
        that no later writer goes by."""
        with suppress(Fenced):  # it was taken over meanwhile
            return self.prepare(broker_name)
        return self._newest.take(broker_name)

    def _holds_still(self, broker_name: str, inheritance: Inheritance | None) -> bool:
        own = self._find_own(broker_name)
        if own is not None and own.inheritance is inheritance:
            with suppress(Fenced):
                own.epoch.confirm()
            return not own.epoch.is_lost
        return inheritance is not None and self._newest.is_newest(broker_name, inheritance)

    def _check_said(
        self, broker_name: str, inheritance: Inheritance, chains: Iterable[Chain]
    ) -> None:
        """Raise Corrupt where an epoch has written that did not say what it inherits, in a view
        that is the newest: that was said before the first write, so it was lost. By an older
        view, or none, all that it names would be garbage."""
        later = max((chain.later for chain in chains), default=0)
        later = max(later, inheritance.latest_grouped)
        if later > inheritance.number:
            key = f"{self._newest.folder(broker_name)}/{inherited_name(later)}"
            raise Corrupt(
                f"{key}: epoch {later} has written, and what it inherits is not there, so which "
                "objects of the broker count cannot be told; put it back",
                path=key,
            )

    # Listing

    def _list_broker(self, broker_name: str, prefix: str) -> dict[SegmentId, Chain]:
        for _ in range(MAX_STARTS):
            inheritance = self._take(broker_name)
            try:
                found = self._listings.read_segments(
                    f"{self._cluster_folder}/{prefix}/", inheritance
                )
            except Superseded as gone:
                self._newest.start_over(broker_name, inheritance.number, gone)
                continue
            if self._holds_still(broker_name, inheritance):
                self._check_said(broker_name, inheritance, found.values())
                return found
        raise self._newest.make_restless_error(broker_name)

    def _list_known(self, broker_name: str) -> dict[SegmentId, Chain] | None:
        """What a listing would show now, once: it was just found out."""
        own = self._find_own(broker_name)
        if own is None or own.is_listed:
            return None
        is_new = own.inheritance is None
        self._inherit(broker_name, own)
        own.is_listed = True
        if own.epoch.has_helpers:
            return None
        as_of = self._changes.count
        left = own.known.take_stock() if own.known is not None else None
        if left is None or left.unsure or not (is_new or self._holds_still(broker_name, own.said)):
            return None
        if is_new:
            return dict(left.chains)
        return {id: replace(chain, as_of=as_of) for id, chain in left.chains.items()}  # noqa: A001

    # Inheriting

    def _inherit(self, broker_name: str, own: _Own) -> None:
        """Find out what there is, after the epoch was claimed, and say what of it counts."""
        number = own.epoch.number
        with own.lock:
            if own.inheritance is not None:
                return
            if own.objects is None or own.known is None:
                as_of = self._changes.count
                found = self._find_for_heir(broker_name, number)
                chains = {id: chain.hand_down(number, as_of) for id, chain in found.items()}  # noqa: A001
                own.known = KnownChains(number, chains)
                inherited = {
                    found: chain.leave_to_heirs()
                    for found, chain in chains.items()
                    if chain.is_there
                }
                has_groups = bool(self._settings.group_bytes) or _has_groups(chains.values())
                own.said = Inheritance(number, inherited, has_groups=has_groups)
                own.said.is_searched = True  # who comes later claims an epoch first
                own.objects = encode_inheritance(number, inherited, has_groups=has_groups)
            for name, content in own.objects:
                self._make(f"{self._newest.folder(broker_name)}/{name}", content, own.epoch)
            own.inheritance = own.said

    def _find_for_heir(self, broker_name: str, number: int) -> dict[SegmentId, Chain]:
        """What the last epoch that has written left, else what is listed."""
        self._newest.forget(broker_name)  # nothing counts that was seen before the claim
        self.groups.look_again()  # what cannot be read now is missed for good
        for _ in range(MAX_STARTS):
            last = self._newest.find_number(broker_name)
            if last >= number:
                raise Fenced(
                    f"{self._newest.folder(broker_name)}: epoch {number} was taken over: epoch "
                    f"{last} has written"
                )
            try:
                # Not where an epoch was claimed in between: what it inherits may have been lost.
                found = self._take_left(broker_name, last) if 0 < last == number - 1 else None
                inheritance = Inheritance(last)
                if found is None:
                    inheritance = self._newest.load(broker_name, last)
                    prefix = f"{self._cluster_folder}/{broker_name}/"
                    found = self._listings.read_segments(prefix, inheritance)
            except Superseded as gone:
                self._newest.start_over(broker_name, last, gone)
                continue
            if self._newest.find_number(broker_name) == last:
                self._check_said(broker_name, inheritance, found.values())
                return found
        raise self._newest.make_restless_error(broker_name)

    def _take_left(self, broker_name: str, last: int) -> dict[SegmentId, Chain] | None:
        """What epoch `last` left, which is all that was acknowledged below it: who came after it,
        and has said nothing of an inheritance, has written nothing."""
        left = decode_left(last, lambda name: self._newest.read(broker_name, name))
        if left is None:
            return None
        found = dict(left.chains)
        inheritance = self._newest.load(broker_name, last) if left.unsure else Inheritance(last)
        for id in left.unsure:  # noqa: A001 - the contract's name
            folder = f"{self._cluster_folder}/{naming.relative_segment_path(id)}"
            found[id] = self._listings.read_segment(id, folder, inheritance)
        return found

    def _make(self, key: str, content: bytes, epoch: HeldEpoch) -> None:
        """Nobody else makes this object: where it is there already, it is ours."""
        problem: TieredStoreError | None = None
        with self._settings.limit_retries():
            for attempt in self._settings.attempts():
                epoch.check()
                try:
                    self._client.put_if_absent(key, [content], {"w": epoch.stamp})
                except (Busy, Unavailable) as error:
                    problem = error
                    self._settings.pause(attempt)
                else:
                    return
        raise Unavailable(f"{key}: what the epoch inherits is not written: {problem}", path=key)


def _has_groups(chains: Iterable[Chain]) -> bool:
    return any(extent.is_grouped for chain in chains for extent in chain.extents)
