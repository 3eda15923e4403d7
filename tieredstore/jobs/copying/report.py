"""What a copy is asked to do, how far it is, and what it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tieredstore.contracts.usage import Usage
from tieredstore.errors import TieredStoreError


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """topics: only these (shell patterns), all when empty. workers: queues copied at a time.
    replace: delete queues (and an index) of the target that are not the source's, and copy them
    anew. take_over: end the right of another writer where the backend can."""

    topics: Sequence[str] = ()
    workers: int = 4
    replace: bool = False
    take_over: bool = False


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Bytes and segments so far, of those that the run found to be copied when it began."""

    done_bytes: int
    total_bytes: int
    segments: int
    segments_total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PathSummary:
    """One path of a plan: bytes to be copied and those there already. conflict: why it cannot be
    copied as it is; deletes_bytes: what would be deleted in the target to do so all the same."""

    path: str
    copy_bytes: int
    there_bytes: int
    segments: int
    conflict: str | None = None
    deletes_bytes: int = 0


@dataclass(slots=True)
class CopyReport:
    """What a run did. queues: those chosen; segments: made or extended; copied_bytes: written or,
    after a run that was cut off, compared; there_bytes: already there. index_segments: of
    `segments`. replaced, vanished: paths deleted first, and those that the source no longer had
    when their turn came. failed: path and error. damage: what the source's listing and state
    disagree on, and what is therefore not copied. notes: what else is not. index_left_out: why no
    index was copied. source_usage, target_usage: requests, of providers that count them."""

    queues: int = 0
    segments: int = 0
    index_segments: int = 0
    copied_bytes: int = 0
    there_bytes: int = 0
    seconds: float = 0.0
    replaced: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    failed: list[tuple[str, TieredStoreError]] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    index_left_out: str | None = None
    stopped: bool = False
    source_usage: Usage | None = None
    target_usage: Usage | None = None
