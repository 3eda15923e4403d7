"""Identity and change number of a broker's part of a tier. The first writer gives the part a
permanent random identity. The change number is the number of the newest writer epoch and only
grows. Each epoch has a unique token, so two histories of a tier differ even if their numbers are
equal. A state directory records the epochs it took (claims), so that a restarted writer can
continue without an operator."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


class WriterKind(enum.StrEnum):
    """Kind of the owner of a writer epoch."""

    STORE = "store"
    """Store of a broker, which assigns queue offsets."""
    STARTING = "starting"
    """Store of a broker that has not compared its state with the tier yet. It assigns no queue
    offsets. If its start fails or is killed, no other store becomes outdated."""
    JOB = "job"
    """Job, which assigns no queue offsets."""


@dataclass(frozen=True, slots=True)
class WriterMark:
    """Mark that a writer leaves in the tier with its epoch. `identity`: identity of the tier, found
    or created by this writer. `token`: unique to this epoch. `store`: identity of the store, or
    empty for a job. `after`: change number of the tier when the writer compared its state with the
    tier. The epoch is taken only if this is still the newest change number. `is_after_start`: True
    if epoch `after` belonged to a starting store. The epoch is then taken only if that store has
    not begun to accept messages."""

    identity: str
    token: str
    kind: WriterKind
    store: str = ""
    after: int = 0
    is_after_start: bool = False


@dataclass(frozen=True, slots=True)
class TierMark:
    """Identity and last writers of a broker's part of a tier. `identity`: None if no writer created
    one (Java, older versions). `number`: number of the newest epoch, or 0. `writers`: marks of the
    newest epochs by number, or None for an epoch without a mark. `older`: epochs up to this number
    are not in `writers`. `older_store`: newest of these older epochs known to be taken by a store,
    or 0. `is_empty`: True if there is neither an epoch nor a segment. `is_missing`: True if the
    location of the tier does not exist."""

    identity: str | None = None
    number: int = 0
    writers: Mapping[int, WriterMark | None] = field(default_factory=dict)
    older: int = 0
    older_store: int = 0
    is_empty: bool = False
    is_missing: bool = False


@runtime_checkable
class IdentifiedTier(Protocol):
    """Provider that stores the identity and change number of a tier. Optional."""

    def read_mark(self, broker_name: str, since: int) -> TierMark:
        """Read the mark of a broker's part, with the writers of all epochs from `since`. A `since`
        of 0 returns only the writer of the newest epoch. Writes nothing. Raises Unavailable or
        Corrupt."""

    def list_brokers(self) -> Iterator[str]:
        """Yield the names of the brokers that have data in the tier. Raises Unavailable."""


@runtime_checkable
class StartedEpoch(Protocol):
    """Writer epoch that a starting store (`WriterKind.STARTING`) can convert to a store's epoch.
    Every epoch of an `IdentifiedTier` has this method."""

    def become_store(self) -> None:
        """Durably convert this epoch from `STARTING` to `STORE`. Call it before the store accepts
        messages. Raises Fenced if the epoch was lost, or Unavailable."""


@runtime_checkable
class WatchedEpoch(Protocol):
    """Writer epoch that can report its successor. Optional."""

    def find_other_store(self) -> str | None:
        """Return a description of the store that took a later epoch. Returns None if there is no
        later epoch, or if only jobs and failed starts took one. An epoch without a mark counts as a
        store's epoch. Raises Unavailable."""


class EpochRecord(Protocol):
    """Claims to writer epochs, recorded in a locked state directory. Each claim is a unique string.
    A provider whose epochs outlive the process saves a claim before it takes an epoch. The owner of
    the directory may take over an epoch whose claim is in the record, because the process that took
    it has lost the lock and must have ended."""

    @property
    def mark(self) -> WriterMark | None:
        """Mark that the next epoch writes to the tier, or None for a job without state."""

    def load(self) -> Sequence[str]:
        """Return the claims, oldest first, or none if the directory is a copy of another one.
        Raises Invalid for a newer format, or Unavailable."""

    def save(self, claims: Sequence[str]) -> None:
        """Durably replace the claims. Raises Invalid or Unavailable."""
