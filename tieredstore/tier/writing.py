"""Opens a broker's part of a tier for writing, for the tiered store and for all jobs. The state
directory is locked and the writer epoch is taken before the metadata is read. The metadata then has
everything that the previous writer recorded. Only a writer writes metadata and finishes registered
deletions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tieredstore.clock import Clock
from tieredstore.contracts.dispatch_source import HistorySource
from tieredstore.contracts.metadata_store import JournaledStructure, MetadataStore
from tieredstore.contracts.segment import (
    BoundedStop,
    HelpedEpoch,
    NumberedEpoch,
    SegmentProvider,
    WriterEpoch,
)
from tieredstore.contracts.tier_identity import WatchedEpoch
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Busy, Fenced, TieredStoreError, Unavailable
from tieredstore.server_process import without_cycle_search
from tieredstore.service_thread import ServiceHealth, ServiceThread
from tieredstore.tier import state_files
from tieredstore.tier.deleted.records import DeletedTopic, QueueEnds
from tieredstore.tier.identity.belonging import Belonging

_MAX_TRIES = 8
_log = logging.getLogger(__name__)


def _do_nothing() -> None:
    """Do nothing, as the default of `on_fenced`."""


def begin_stop(provider: SegmentProvider) -> None:
    """Start the shutdown deadline of a provider, if it has one. Call `close` later. Safe to call
    from a signal handler."""
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
    belonging: Belonging | None = None,
    metadata: MetadataStore | None = None,
) -> WriterEpoch:
    """Lock a state directory, unless it is None, and take the writer epoch of the broker's prefix.
    Closing `stack` releases both. An epoch that was already taken with this state directory is
    taken again without a request, because the unlocked directory proves that its process has ended.

    `take_over`: fence another writer if the backend supports it. A process that holds the state
    directory must be stopped instead.
    `belonging`: checks before the epoch is taken that the parts belong together, if there is
    metadata.

    Raises Unavailable, Fenced with the name of the holder, and Invalid with the recovery procedure
    if the parts do not belong together.
    """
    record = None
    if state is not None:
        lock = state_files.StateLock(state)
        lock.acquire()
        stack.callback(lock.release)
        record = state_files.StateRecord(state, lock)
    epoch = _acquire(provider, broker, record, belonging, metadata, take_over=take_over)
    stack.callback(epoch.release if state is None else lambda: _release_if_possible(epoch, state))
    return epoch


def _acquire(
    provider: SegmentProvider,
    broker: str,
    record: state_files.StateRecord | None,
    belonging: Belonging | None,
    metadata: MetadataStore | None,
    *,
    take_over: bool,
) -> WriterEpoch:
    """Check that the tier belongs to this state directory, and take the epoch. Both are repeated if
    another writer takes an epoch in between."""
    for attempt in range(_MAX_TRIES):
        if record is not None and belonging is not None:
            record.mark = belonging.claim(metadata)
        try:
            return provider.acquire_writer(broker, take_over=take_over, record=record)
        except Busy:
            if belonging is None or attempt + 1 == _MAX_TRIES:
                raise
    raise AssertionError  # the loop returns or raises


def _release_if_possible(epoch: WriterEpoch, state: Path) -> None:
    """Release an epoch if possible. If not, it blocks only writers with another state directory."""
    try:
        epoch.release()
    except Unavailable as error:
        _log.warning("%s. A start with state %s continues nevertheless", error, state)


class TierWriter:
    """Writer of one broker's part of a tier, with the metadata that was read under its epoch.
    Created by `acquire`. A `with` block releases the epoch at its end. Provider and metadata stay
    open."""

    def __init__(
        self,
        provider: SegmentProvider,
        metadata: MetadataStore,
        broker: str,
        epoch: WriterEpoch,
        held: ExitStack,
        keeper: state_files.WrittenKeeper | None = None,
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
        self._left_records: tuple[Mapping[str, DeletedTopic], str] | None = None
        self._belonging: Belonging | None = None
        self._records_at_end = False
        self.looks = 0
        """Number of fence checks that have confirmed the epoch."""
        self.on_fenced: Callable[[], object] = _do_nothing
        """Function that is called each time epoch ownership is found to be lost, in the thread that
        finds it."""

    @classmethod
    def acquire(
        cls,
        provider: SegmentProvider,
        metadata: MetadataStore,
        broker: str,
        state: Path | None = None,
        *,
        take_over: bool = False,
        belonging: Belonging | None = None,
    ) -> Self:
        """Take the epoch like `take_right`, then load the metadata. `belonging`: check of a store,
        which records the result after it has compared the ends of its queues (`record_belonging`).
        Without it, the state directory is compared here, and the result is recorded when a job ends
        without errors. Raises the errors of both steps. After an error, the epoch is released and
        no metadata was written."""
        with ExitStack() as stack:
            own = belonging
            if own is None and state is not None:
                own = Belonging(provider, broker, state)
            epoch = take_right(
                *(stack, provider, broker, state),
                take_over=take_over,
                belonging=own,
                metadata=metadata,
            )
            with without_cycle_search():
                metadata.load()
            journaled = find_layer(metadata, JournaledStructure)
            if journaled is not None:
                # Java only supports files that can be rewritten.
                is_java = provider.capabilities.rewritable
                journaled.journal_structure(is_wanted=not is_java)
            keeper = None
            if state is not None:
                keeper = state_files.WrittenKeeper(state, provider)
                stack.callback(keeper.keep)
            writer = cls(provider, metadata, broker, epoch, stack.pop_all(), keeper, state)
            writer._belonging = own
            writer._records_at_end = belonging is None
            return writer

    def find_clean_ends(self) -> Mapping[str, QueueEnds]:
        """Return the ends of the queues when the previous epoch ended, by path. Empty if the state
        directory lacks them, or another process has written to the tier since."""
        state = self._find_proven_state()
        return {} if state is None else state_files.find_clean_ends(state, self.epoch_number)

    def leave_clean_ends(self, ends: Mapping[str, QueueEnds]) -> None:
        """Save the ends of the queues in the state directory when this epoch is released."""
        self._left_ends = ends

    def find_clean_records(self) -> state_files.LeftRecords | None:
        """Return the records of deleted topics that the previous epoch left in the state directory,
        or None."""
        state = self._find_proven_state()
        return None if state is None else state_files.find_clean_records(state, self.epoch_number)

    def is_up_to_date(self) -> bool:
        """Return whether no store with another state directory has written to this tier since."""
        return self._belonging is not None and self._belonging.is_up_to_date()

    def find_left_records(self) -> Mapping[str, DeletedTopic]:
        """Return the records of deleted topics in the state directory, which an older copy of the
        tier may lack. Empty if the directory is not up to date."""
        if self._state is None or not self.is_up_to_date():
            return {}
        return state_files.find_left_records(self._state)

    def note_records(self, records: Mapping[str, DeletedTopic]) -> None:
        """Copy the records of deleted topics to the state directory after they were written to the
        tier."""
        if self._state is not None:
            state_files.note_records(self._state, records)

    def leave_clean_records(self, records: Mapping[str, DeletedTopic], newest: str) -> None:
        """Save the records of deleted topics in the state directory when this epoch is released.
        `newest`: name of their newest version in the tier."""
        self._left_records = dict(records), newest

    def _find_proven_state(self) -> Path | None:
        """Return the state directory if it is proven to belong to this tier. Epoch numbers do not
        prove this, because other tiers have the same ones."""
        is_proven = self._belonging is None or not self._belonging.needs_contents
        return self._state if self.epoch_number and is_proven else None

    @property
    def epoch_number(self) -> int:
        """Number of the epoch, greater than all earlier ones. 0 if epochs have no numbers."""
        epoch = find_layer(self._epoch, NumberedEpoch)
        return 0 if epoch is None else epoch.number

    def expect_helpers(self) -> int | None:
        """Allow other processes to write under this epoch. Returns the epoch number, by which these
        processes refer to it, or None if the provider's epochs have no numbers."""
        epoch = find_layer(self._epoch, HelpedEpoch)
        if epoch is None:
            return None
        epoch.expect_helpers()
        return epoch.number

    def record_belonging(self) -> None:
        """Record that store, state directory and tier belong together. Raises Unavailable."""
        if self._belonging is not None:
            self._belonging.record(self._epoch)

    def find_other_store(self) -> str | None:
        """Return a description of another store that has taken the epoch over, or None. See
        `WatchedEpoch`."""
        epoch = find_layer(self._epoch, WatchedEpoch)
        return None if epoch is None else epoch.find_other_store()

    def check(self) -> None:
        """Raise Fenced if the epoch is known to be lost. Only `confirm` proves that it is not."""
        try:
            self._epoch.check()
        except Fenced:
            self.on_fenced()
            raise

    def confirm(self) -> None:
        """Confirm all bytes that were stored before this call (see `WriterEpoch.confirm`). Raises
        Fenced if the epoch was lost, and Unavailable if this is unknown."""
        try:
            self._epoch.confirm()
        except Fenced:
            self.on_fenced()
            raise
        self.looks += 1
        if self._keeper is not None:
            self._keeper.keep_at_intervals()

    def release(self, *, is_good: bool = True) -> None:
        """Update the main file of the metadata, unless the epoch was lost, then release the epoch
        and the state directory. `is_good`: whether the work succeeded. Idempotent. Raises
        Unavailable."""
        held, self._held = self._held, None
        if held is not None:
            with held:
                self._flush()
                if is_good and self._records_at_end:
                    self.record_belonging()

    def _flush(self) -> None:
        try:
            self.confirm()
        except (Fenced, Unavailable) as error:
            _log.warning("the metadata's journal is not brought to its main file: %s", error)
        else:
            self.metadata.flush()
            epoch = find_layer(self._epoch, NumberedEpoch)
            if self._state is None or epoch is None:
                return
            if self._left_ends is not None:
                state_files.keep_clean_ends(self._state, epoch.number, self._left_ends)
            if self._left_records is not None:
                state_files.keep_clean_records(self._state, epoch.number, *self._left_records)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.release(is_good=error is None)
        except TieredStoreError as problem:
            if error is None:
                raise
            _log.warning("%s: %s", self.provider.url, problem)  # the first error is raised


CHECK_INTERVAL_MS: Final = 10_000
"""Maximum time between two fence checks while messages are put."""


class RightWatch:
    """Runs fence checks while messages arrive, unless another part has run one in the interval.
    `find_source`: callable that returns the store that must reject puts once the epoch is lost, or
    None."""

    def __init__(self, find_source: Callable[[], HistorySource | None], clock: Clock) -> None:
        self._find_source = find_source
        self._writer: TierWriter | None = None
        self._log_end = -1
        self._looks = -1
        self._is_fenced = False
        self.refusal: str | None = None
        """Reason why puts are refused. None while they are accepted."""
        # Two rounds per interval, because a check by another part counts for its round.
        self._loop = ServiceThread(
            "tiered-right", self.run_once, CHECK_INTERVAL_MS // 2, clock=clock, waits_first=True
        )

    def watch(self, writer: TierWriter) -> None:
        """Watch the epoch of this writer from now on."""
        self._writer = writer
        writer.on_fenced = self._note_fenced

    def start(self) -> None:
        """Start checking at intervals."""
        if self._writer is not None:
            self._loop.start()

    def stop(self) -> None:
        """Stop the loop. Idempotent."""
        self._loop.stop()

    def health(self) -> list[ServiceHealth]:
        """Return the health of the background loop."""
        return [] if self._writer is None else [self._loop.health()]

    def run_once(self) -> None:
        """Run a fence check if messages arrived since the last call and no other check was run.
        Raises Unavailable if the backend does not answer."""
        source, writer = self._find_source(), self._writer
        if source is None or writer is None or self.refusal is not None:
            return
        log_end, looks = source.log_end, writer.looks
        if looks != self._looks:
            self._looks = looks  # another part has checked, possibly before the last messages
        elif log_end != self._log_end:
            try:
                if self._is_fenced:
                    self._ask()
                else:
                    writer.confirm()
            except Fenced:
                pass  # `_note_fenced` was called
            self._log_end, self._looks = log_end, writer.looks

    def _note_fenced(self) -> None:
        """Record that the epoch is lost and who has taken it."""
        if self._is_fenced:
            return  # the rounds continue to ask
        self._is_fenced = True
        try:
            self._ask()
        except Unavailable as error:
            _log.warning("the right to write is lost, and who has it is not known yet: %s", error)

    def _ask(self) -> None:
        source, writer = self._find_source(), self._writer
        if source is None or writer is None or self.refusal is not None:
            return
        other = writer.find_other_store()
        if other is None:
            return
        self.refusal = (
            f"broker {writer.broker!r}: another store has the right to write its tier "
            f"({writer.provider.url}): {other}. This store takes no more messages, since both "
            "would give out the same queue offsets. Reads continue. Stop this broker. The messages "
            "that it took since are in its log (`tieredstore cat --store`)"
        )
        _log.error("%s", self.refusal)
        source.refuse_puts(self.refusal)
