"""GroupGarbage: group objects that no segment needs.

No chain that names one of them is remembered from the moment on at which it is looked who needs
them: a listing may still show them. What may be all that is left of bytes is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from tieredstore.contracts.segment import SegmentId
from tieredstore.providers.chunks.client import ObjectClient, ObjectInfo
from tieredstore.providers.chunks.lives.chain import Chain, Hole, rank_run
from tieredstore.providers.chunks.lives.groups import RUNS_LEVEL, GroupName, GroupPiece
from tieredstore.providers.chunks.lives.names import find_group
from tieredstore.providers.chunks.lives.views import Views
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority
from tieredstore.providers.chunks.upkeep.garbage import MAX_DELETED_KEYS
from tieredstore.providers.chunks.writing.gathering import Gatherer

_log = logging.getLogger(__name__)
_Listed: TypeAlias = tuple[GroupName, ObjectInfo]
_Holes: TypeAlias = Mapping[SegmentId, Sequence[Hole]]


class GroupGarbage:
    """One for all brokers of a tier; one call at a time for each."""

    def __init__(
        self, client: ObjectClient, settings: ChunkSettings, gatherer: Gatherer, views: Views
    ) -> None:
        self._client = client
        self._settings = settings
        self._gatherer = gatherer
        self._views = views
        self._unused: dict[str, dict[str, int]] = {}
        self._inherited: dict[str, tuple[int, set[str]]] = {}

    def collect(
        self,
        broker_name: str,
        authority: Authority,
        find_chains: Callable[[], Iterable[tuple[SegmentId, Chain]]],
    ) -> int:
        """Delete groups that no segment needs for the grace time. find_chains: looks for what there
        is. Returns how many. Raises Fenced, Unavailable."""
        listed = self._views.groups.list_names(broker_name)
        now_ms = self._settings.monotonic_ms()
        before = self._unused.get(broker_name, {})
        due = {
            name
            for name, since_ms in before.items()
            if now_ms - since_ms >= self._settings.grace_ms
        }
        former, inherited = self._inherited.get(broker_name, (0, set()))
        due |= {
            str(name)
            for name, _ in listed
            if name.life.epoch < former and str(name) not in inherited
        }
        if not self._settings.grace_ms:
            due |= {str(name) for name, _ in listed}
        self._views.doom(broker_name, due)
        # In this order: what is stored meanwhile is in the first or in the second.
        needed = set(self._gatherer.list_sent(authority))
        chains = dict(find_chains())
        needed |= _find_needed(chains.items())
        holes = _find_holes(chains)
        unused = [
            (name, info)
            for name, info in listed
            if name.life.epoch <= authority.number and str(name) not in needed
        ]
        self._unused[broker_name] = {str(name): before.get(str(name), now_ms) for name, _ in unused}
        garbage = [
            found
            for found in unused
            if str(found[0]) in due and not self._may_be_seen(*found, chains, authority)
        ]
        self._views.doom(broker_name, {str(name) for name, _ in garbage})
        return self._delete(garbage, holes, authority)

    def note_inherited(
        self,
        broker_name: str,
        authority: Authority,
        find_chains: Callable[[], Iterable[tuple[SegmentId, Chain]]],
    ) -> None:
        """Know, before this epoch sorts anything, which groups of former ones a segment needs: of
        all others the cover has been there since before its claim, so they may go the first time.
        Each of many processes may live for less than the time between two."""
        if broker_name not in self._inherited:
            self._inherited[broker_name] = authority.number, _find_needed(find_chains())

    def reap(self, broker_name: str, authority: Authority) -> int:
        """Delete the groups of former epochs where nothing is in groups: what they have is deleted,
        or late. Returns how many. Raises Fenced, Unavailable."""
        if not self._views.is_prepared(broker_name) or self._views.has_groups(broker_name):
            return 0
        listed = self._views.groups.list_names(broker_name)
        older = [found for found in listed if found[0].life.epoch < authority.number]
        chains = self._views.take_stock(broker_name).chains if older else {}
        return self._delete(older, _find_holes(chains), authority)

    def _may_be_seen(
        self,
        name: GroupName,
        info: ObjectInfo,
        chains: Mapping[SegmentId, Chain],
        authority: Authority,
    ) -> bool:
        """Whether a listing may show bytes of a group of runs in place of those that a chain has:
        its making got no answer. A successor could begin to need it while it is deleted."""
        if name.level != RUNS_LEVEL:
            return False  # nothing of it where there are runs, and its making got an answer
        group = self._views.groups.read(name, info)
        return group is not None and any(
            self._counts(piece, chain, authority) and not _is_covered(piece, chain, str(name))
            for piece in group.pieces
            if (chain := chains.get(piece.id)) is not None
        )

    def _counts(self, piece: GroupPiece, chain: Chain, authority: Authority) -> bool:
        if piece.life.epoch == authority.number:
            return chain.born is not None and piece.life >= chain.born
        return any(
            span.life == piece.life and piece.start < span.end and span.start < piece.end
            for span in self._views.find_inherited(piece.id).spans
        )

    def _delete(self, found: Sequence[_Listed], holes: _Holes, authority: Authority) -> int:
        keys = [info.key for name, info in found if not self._is_kept(name, info, holes, authority)]
        for first in range(0, len(keys), MAX_DELETED_KEYS):
            authority.confirm()  # what makes these garbage counts before they go
            self._client.delete(keys[first : first + MAX_DELETED_KEYS])
        return len(keys)

    def _is_kept(
        self, name: GroupName, info: ObjectInfo, holes: _Holes, authority: Authority
    ) -> bool:
        """Whether it may be all that is left of bytes: it cannot be read, and another process made
        it or a segment has a hole; or it has what a segment misses."""
        if name.life.epoch == authority.number and not holes:
            return False
        group = self._views.groups.read(name, info)
        if group is not None and not group.is_readable:
            _log.error("%s: kept, as what it has cannot be told: its index is damaged", info.key)
            return True
        return group is not None and any(
            piece.start < hole.end and hole.start < piece.end
            for piece in group.pieces
            for hole in holes.get(piece.id, ())
        )


def _is_covered(piece: GroupPiece, chain: Chain, group: str) -> bool:
    """Whether all listings show a run of the chain in place of a piece of a group of runs."""
    return any(
        not run.is_chunk and run.start <= piece.start and rank_run(run) > (piece.end, False, group)
        for run in chain.find_extents(piece.start, 1)
    )


def _find_holes(chains: Mapping[SegmentId, Chain]) -> _Holes:
    return {id: chain.holes for id, chain in chains.items() if chain.holes}  # noqa: A001


def _find_needed(chains: Iterable[tuple[SegmentId, Chain]]) -> set[str]:
    return {
        find_group(extent.name)
        for _, chain in chains
        for extent in chain.extents
        if extent.is_grouped
    }
