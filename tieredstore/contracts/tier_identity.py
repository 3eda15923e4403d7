"""Identity and change number of a broker's part of a tier. The first writer gives the part a
permanent random identity. The change number is the number of the newest writer epoch, and only
grows. Each epoch has a unique token, so two histories of one tier differ even if their numbers are
equal. A state directory records the epochs that it took (claims). With these claims, a restarted
writer continues without an operator."""

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
    """Store of a broker that has not compared its state with the tier yet. Such a store assigns no
    queue offsets. If its start is refused or killed, the state of no other store becomes outdated.
    """
    JOB = "job"
    """Job, which assigns no queue offsets."""


@dataclass(frozen=True, slots=True)
class WriterMark:
    """Mark that a writer leaves in the tier with its epoch. `identity`: identity of the tier, found
    or created by this writer. `token`: unique to this epoch. `store`: identity of the store, or
    empty for a job. `after`: change number of the tier when the writer compared its own state with
    the tier. The new epoch is taken only if `after` is still the newest change number.
    `is_after_start`: whether epoch `after` belonged to a starting store. If so, the new epoch is
    taken only if that store has not begun to accept messages since."""

    identity: str
    token: str
    kind: WriterKind
    store: str = ""
    after: int = 0
    is_after_start: bool = False


@dataclass(frozen=True, slots=True)
class TierMark:
    """Identity and last writers of a broker's part of a tier. `identity`: None if no writer created
    one (Java, older versions). `number`: number of the newest epoch, or 0 without one. `writers`:
    marks of the newest epochs by number. None for an epoch without a mark. `older`: epochs up to
    this number are not in `writers`. `older_store`: the newest of these older epochs that a store
    took, as far as known, or 0. `is_empty`: whether the part has neither an epoch nor a segment.
    `is_missing`: whether the location of the tier does not exist."""

    identity: str | None = None
    number: int = 0
    writers: Mapping[int, WriterMark | None] = field(default_factory=dict)
    older: int = 0
    older_store: int = 0
    is_empty: bool = False
    is_missing: bool = False


@runtime_checkable
class IdentifiedTier(Protocol):
    """Provider that keeps the identity and the change number of a tier. Optional."""

    def read_mark(self, broker_name: str, since: int) -> TierMark:
        """Read the mark of a broker's part, with the writers of all epochs starting at `since`. If
        `since` is 0, the mark has only the writer of the newest epoch. Writes nothing. Raises
        Unavailable, Corrupt."""

    def list_brokers(self) -> Iterator[str]:
        """Yield the names of the brokers that have data in the tier. Raises Unavailable."""


@runtime_checkable
class StartedEpoch(Protocol):
    """Writer epoch that can be converted to a store's epoch, if a starting store
    (`WriterKind.STARTING`) took it. Every epoch of an `IdentifiedTier` has this method."""

    def become_store(self) -> None:
        """Durably convert this epoch from `STARTING` to `STORE`. Call this method before the store
        accepts messages. Raises Fenced if the epoch was lost, Unavailable."""


@runtime_checkable
class WatchedEpoch(Protocol):
    """Writer epoch that can report its successor. Optional."""

    def find_other_store(self) -> str | None:
        """Return a description of the store that took a later epoch. Return None if no later epoch
        exists, or if only jobs and refused starts took later epochs. An epoch without a mark counts
        as a store's epoch. Raises Unavailable if the backend does not answer."""


class EpochRecord(Protocol):
    """Claims to writer epochs that were made with one locked state directory. Each claim is a
    unique string. A provider whose epochs outlive the process saves a claim before it takes an
    epoch. If the claim of an existing epoch is in the record, the owner of the directory may take
    over that epoch. The process that took the epoch has ended, because it no longer holds the lock
    of the directory."""

    @property
    def mark(self) -> WriterMark | None:
        """The mark (an id) that the next epoch writes to the tier. None for a job without state."""

    def load(self) -> Sequence[str]:
        """Return the claims, oldest first. Empty if the directory is a copy of another directory.
        Raises Invalid for a newer format, Unavailable."""

    def save(self, claims: Sequence[str]) -> None:
        """Replace the claims. They are on stable storage on return. Raises Invalid, Unavailable."""
