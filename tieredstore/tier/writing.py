"""Opens a broker's part of a tier for writing: the one way for the tiered store and for all jobs.

The state directory is locked, the writer epoch is taken, and only then is the metadata read: what
another writer recorded until it gave its right up is known. Metadata is written, and a deletion
that was announced is finished, by a writer only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tieredstore.contracts.metadata_store import JournaledStructure, MetadataStore
from tieredstore.contracts.segment import (
    BoundedStop,
    HelpedEpoch,
    NumberedEpoch,
    SegmentProvider,
    WriterEpoch,
)
from tieredstore.contracts.wrapping import find_layer
from tieredstore.cycles import without_cycle_search
from tieredstore.errors import Fenced, TieredStoreError, Unavailable
from tieredstore.tier.clean_ends import QueueEnds, find_clean_ends, keep_clean_ends
from tieredstore.tier.state_lock import StateLock, StateRecord
from tieredstore.tier.written_bytes import WrittenKeeper

_log = logging.getLogger(__name__)


def begin_stop(provider: SegmentProvider) -> None:
    """Let the time begin that a provider's stop may take, where it has one: `close` follows. Safe
    to call from a signal handler."""
    bounded = find_layer(provider, BoundedStop)
    if bounded is not None:
        bounded.begin_stop()


def take_right(
    stack: ExitStack,
    provider: SegmentProvider,
    broker: str,
    state: Path | None,
    *,
    take_over: bool = False,
) -> WriterEpoch:
    """Lock a state directory (None: there is none), then take the writer epoch of the broker's
    prefix; closing `stack` gives both back. Raises Fenced naming who has either, Unavailable.

    An epoch that was taken with this state directory is taken again without being asked to: its
    process has ended, as the directory is not locked. take_over: end the right of another writer
    where the backend can. A process that holds the state directory must be stopped.
    """
    record = None
    if state is not None:
        lock = StateLock(state)
        lock.acquire()
        stack.callback(lock.release)
        record = StateRecord(state, lock)
    epoch = provider.acquire_writer(broker, take_over=take_over, record=record)
    stack.callback(epoch.release if state is None else lambda: _release_if_possible(epoch, state))
    return epoch


def _release_if_possible(epoch: WriterEpoch, state: Path) -> None:
    """An epoch that stays held is nobody's obstacle but another node's."""
    try:
        epoch.release()
    except Unavailable as error:
        _log.warning("%s; whoever starts with state %s goes on all the same", error, state)


class TierWriter:
    """The right to write one broker's part of a tier, with the metadata that was read under it.

    Made by `acquire`. In a `with` block it is released at the end. Provider and metadata stay open.
    """

    def __init__(
        self,
        provider: SegmentProvider,
        metadata: MetadataStore,
        broker: str,
        epoch: WriterEpoch,
        held: ExitStack,
        keeper: WrittenKeeper | None = None,
        state: Path | None = None,
    ) -> None:
        self.provider = provider
        self.metadata = metadata
        self.broker = broker
        self._epoch = epoch
        self._held: ExitStack | None = held
        self._keeper = keeper
        self._state = state
        self._left_ends: Mapping[str, QueueEnds] | None = None

    @classmethod
    def acquire(
        cls,
        provider: SegmentProvider,
        metadata: MetadataStore,
        broker: str,
        state: Path | None = None,
        *,
        take_over: bool = False,
    ) -> Self:
        """Take the right as `take_right` does, then load the metadata. Raises what these raise;
        nothing is held then, and no metadata was written."""
        with ExitStack() as stack:
            epoch = take_right(stack, provider, broker, state, take_over=take_over)
            with without_cycle_search():
                metadata.load()
            journaled = find_layer(metadata, JournaledStructure)
            if journaled is not None:
                # Java knows files, which can be rewritten, and nothing that cannot.
                is_java = provider.capabilities.rewritable
                journaled.journal_structure(is_wanted=not is_java)
            keeper = None
            if state is not None:
                keeper = WrittenKeeper(state, provider)
                stack.callback(keeper.keep)
            return cls(provider, metadata, broker, epoch, stack.pop_all(), keeper, state)

    def find_clean_ends(self) -> Mapping[str, QueueEnds]:
        """Find where the queues ended when the epoch before this one stopped, by path, as far as
        the state directory tells: nobody has written since."""
        epoch = find_layer(self._epoch, NumberedEpoch)
        if epoch is None or self._state is None:
            return {}
        return find_clean_ends(self._state, epoch.number)

    def leave_clean_ends(self, ends: Mapping[str, QueueEnds]) -> None:
        """Leave these to the next epoch, when this one is released."""
        self._left_ends = ends

    @property
    def epoch_number(self) -> int:
        """Of the epoch, greater than all before; 0 where epochs have none."""
        epoch = find_layer(self._epoch, NumberedEpoch)
        return 0 if epoch is None else epoch.number

    def expect_helpers(self) -> int | None:
        """Let other processes write beside the epoch. Returns its number, by which they know it;
        None where there is nothing of that kind."""
        epoch = find_layer(self._epoch, HelpedEpoch)
        if epoch is None:
            return None
        epoch.expect_helpers()
        return epoch.number

    def check(self) -> None:
        """Raise Fenced when the right is known to be lost. Proves nothing: `confirm` does."""
        self._epoch.check()

    def confirm(self) -> None:
        """Let all count that was stored before this call, see `WriterEpoch.confirm`. Raises Fenced
        when the right was lost, Unavailable when nobody can tell."""
        self._epoch.confirm()
        if self._keeper is not None:
            self._keeper.keep_at_intervals()

    def release(self) -> None:
        """Bring the metadata's main file up to date, unless the right was lost, then give epoch and
        state directory back. Idempotent. Raises Unavailable."""
        held, self._held = self._held, None
        if held is not None:
            with held:
                self._flush()

    def _flush(self) -> None:
        try:
            self.confirm()
        except (Fenced, Unavailable) as error:
            _log.warning("the metadata's journal is not brought to its main file: %s", error)
        else:
            self.metadata.flush()
            epoch = find_layer(self._epoch, NumberedEpoch)
            if self._state is not None and self._left_ends is not None and epoch is not None:
                keep_clean_ends(self._state, epoch.number, self._left_ends)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except TieredStoreError as problem:
            if error is None:
                raise
            _log.warning("%s: %s", self.provider.url, problem)  # the first error is the one to tell
