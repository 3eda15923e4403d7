"""Pure comparison of a store, its state directory and its tier. `docs/belonging.md` lists the same
outcomes as a table. A start compares twice: before it takes the epoch, using what the three
recorded about each other (the marks), and afterwards using the contents of the tier too. Marks that
do not match can be harmless, so the contents decide."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.broker_name import STORE_MEMORY
from tieredstore.contracts.tier_identity import TierMark, WriterKind
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.notes import read_note
from tieredstore.errors import Corrupt, Invalid

STATE_MEMORY: Final = "config/tieredstoreTier.json"
MEMORY_FORMAT: Final = 1
KEPT_ATTEMPTS: Final = 64
_log = logging.getLogger(__name__)


class TierMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Record of a store or state directory about its tier.

    `broker`: name of the broker in the tier.
    `identity`: identity of the tier, empty before the first successful start.
    `number`, `token`: change number and token of the last epoch that was recorded after a
    comparison.
    `attempts`: tokens of later epochs that were about to be taken, oldest first.
    `store`: identity of the store, empty in a state directory.
    `url`: location of the tier, for messages.
    """

    format: int = MEMORY_FORMAT
    broker: str
    identity: str = ""
    number: int = 0
    token: str = ""
    attempts: tuple[str, ...] = ()
    store: str = ""
    url: str = ""

    def owns(self, token: str) -> bool:
        """Return whether the owner of this record took the epoch with the given token."""
        return bool(token) and (token == self.token or token in self.attempts)


def read_memory(path: Path) -> TierMemory | None:
    """Read a record file. Returns None if the file is missing or damaged, and the start then
    compares messages instead. Raises Unavailable, or Invalid for a newer format."""
    try:
        found = read_note(path, TierMemory, "the memory of a tier")
    except Corrupt as error:
        _log.warning("%s: ignored", error)
        return None
    if found is not None and found.format > MEMORY_FORMAT:
        raise Invalid(
            f"{path}: the memory has format {found.format}, this program reads {MEMORY_FORMAT}",
            path=str(path),
        )
    return found


def write_memory(path: Path, memory: TierMemory) -> None:
    """Write a record file durably. Raises Invalid, Unavailable."""
    with wrap_os_errors("write", path):
        FILES.make_directory(path.parent)
        FILES.replace_file(path, msgspec.json.encode(memory) + b"\n")


class Outcome(enum.Enum):
    """Results of comparing store, state directory and tier when a broker starts. The values are the
    names in `docs/belonging.md`."""

    SAME = "same"
    AFTER_JOBS = "after jobs"
    NEW_TIER = "new tier"
    UNMARKED = "none"
    OLDER_STATE = "older state, whole"
    OLDER_TIER = "older tier, whole"
    ADOPTED = "adopted"
    OTHER_NAME = "other name"
    NO_NAME = "no name"
    TIER_MISSING = "tier missing"
    TIER_EMPTY = "tier empty"
    OTHER_TIER = "other tier"
    OTHER_STATE = "other state"
    TIER_BEHIND = "tier behind"
    STORE_BEHIND = "store behind"
    STATE_BEHIND = "state behind"
    STORE_EMPTY = "store empty"
    OTHER_STORE = "other store"


STARTS: Final = frozenset(
    {
        Outcome.SAME,
        Outcome.AFTER_JOBS,
        Outcome.NEW_TIER,
        Outcome.UNMARKED,
        Outcome.OLDER_STATE,
        Outcome.OLDER_TIER,
        Outcome.ADOPTED,
    }
)
PROVEN: Final = frozenset({Outcome.SAME, Outcome.AFTER_JOBS})
"""Outcomes that prove, without a comparison of messages, that store, state directory and tier
belong together."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Differences between the tier, the metadata and the local queues. Each item is a sentence.

    `unknown`: segments that the metadata lacks.
    `missing`: segments of the metadata that are missing or incomplete in the tier.
    `gaps`: queues whose local messages were deleted before they were in the tier.
    `ahead`: queues in which the next put would reuse an offset of the tier.
    `differing`: queues whose last message in the tier differs from the local message.
    `hidden`: queues with messages that exist only in segments that the metadata lacks.
    `beyond`: queues in which the next put would reuse an offset of such segments.
    `lost`: queues with messages that the metadata names but neither the store nor the tier has.
    """

    unknown: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that a start compares.

    `has_store`: whether there is a store (a job has only a state directory).
    `is_store_empty`: whether the store's log never had a message.
    `knows_history`: whether the tier has messages, according to the metadata of the state
    directory.
    `known_broker`: broker of these messages.
    `is_told`: value of `tieredStoreAdopt`.
    `other_broker`: another broker that uses the tier, if the store is new and the configuration
    does not name the broker.
    `contents`: differences in the contents, or None before the epoch is taken.
    """

    broker: str
    tier: TierMark
    store: TierMemory | None = None
    state: TierMemory | None = None
    has_store: bool = True
    is_store_empty: bool = False
    knows_history: bool = False
    known_broker: str | None = None
    is_told: bool = False
    other_broker: str | None = None
    contents: Contents | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a comparison, with the details for its message."""

    outcome: Outcome
    detail: str = ""

    @property
    def starts(self) -> bool:
        return self.outcome in STARTS


def compare(facts: Facts) -> Verdict:
    """Decide whether a start may continue. The first rule that matches the facts determines the
    outcome."""
    named = _compare_names(facts)
    if named is not None:
        return named
    if facts.tier.is_missing or facts.tier.is_empty:
        return _compare_with_nothing(facts)
    marks = _compare_marks(facts)
    if not marks.starts:
        return marks
    if facts.has_store and facts.is_store_empty and facts.knows_history:
        marks = Verdict(Outcome.ADOPTED if facts.is_told else Outcome.STORE_EMPTY)
    return _compare_contents(facts, marks) if marks.starts else marks


def _compare_names(facts: Facts) -> Verdict | None:
    for file, memory in _list_memories(facts):
        # A record without an identity comes from a start that did not continue.
        if memory.identity and memory.broker != facts.broker:
            return _refuse_name(file, memory.broker, facts)
    if facts.known_broker not in (None, facts.broker):
        return _refuse_name("config/tieredStoreMetadata.json", facts.known_broker, facts)
    return None


def _refuse_name(file: str, name: str | None, facts: Facts) -> Verdict:
    detail = f"{file} is that of broker {name!r}, not of {facts.broker!r}"
    return Verdict(Outcome.OTHER_NAME, detail)


def _compare_with_nothing(facts: Facts) -> Verdict:
    """Return the verdict for a location without data of this broker: a new tier, or an unmounted
    disk."""
    remembered = [file for file, memory in _list_memories(facts) if memory.identity]
    if not facts.knows_history and _is_state_current(facts):
        remembered = []  # according to its metadata, the tier had no messages
    if facts.knows_history:
        remembered.append("config/tieredStoreMetadata.json")
    if not remembered and facts.other_broker is not None:
        return Verdict(Outcome.NO_NAME, f"it has history of {facts.other_broker!r}")
    if not remembered:
        return Verdict(Outcome.NEW_TIER)
    if facts.is_told and not facts.knows_history:
        return Verdict(Outcome.ADOPTED)
    outcome = Outcome.TIER_MISSING if facts.tier.is_missing else Outcome.TIER_EMPTY
    return Verdict(outcome, f"{', '.join(remembered)} remember it")


def _is_state_current(facts: Facts) -> bool:
    """Return whether the state directory is as recent as the store, so that its metadata can be
    used."""
    store, state = facts.store, facts.state
    if state is None or not state.identity:
        return False
    if store is None:
        return not facts.has_store
    return (store.identity, store.number) == (state.identity, state.number)


def _compare_marks(facts: Facts) -> Verdict:
    tier = facts.tier
    memories = [(file, memory) for file, memory in _list_memories(facts) if memory.identity]
    if tier.identity is None or not memories:
        return Verdict(Outcome.UNMARKED)
    found = [_compare_memory(file, memory, facts) for file, memory in memories]
    refused = [verdict for verdict in found if not verdict.starts]
    if refused:
        return refused[0]
    order = (
        *(Outcome.ADOPTED, Outcome.OLDER_TIER, Outcome.OLDER_STATE),
        *(Outcome.UNMARKED, Outcome.AFTER_JOBS),
    )
    for outcome in order:
        of_kind = [verdict for verdict in found if verdict.outcome is outcome]
        if of_kind:
            return of_kind[0]
    if facts.has_store and (facts.store is None or not facts.store.identity):
        return Verdict(Outcome.UNMARKED)  # of Java, or of an older version
    return Verdict(Outcome.SAME)


def _compare_memory(file: str, memory: TierMemory, facts: Facts) -> Verdict:
    """Compare one record file with the tier. `tieredStoreAdopt` only allows a store with another
    tier. Metadata of another tier is always rejected."""
    tier, is_store = facts.tier, file == STORE_MEMORY
    if memory.identity != tier.identity:
        if facts.is_told and is_store:
            return Verdict(Outcome.ADOPTED)
        store = facts.store
        is_known = store is not None and store.identity == tier.identity
        is_state = not is_store and (is_known or facts.is_told)
        detail = f"{file} remembers tier {memory.identity} ({memory.url}), found {tier.identity}"
        return Verdict(Outcome.OTHER_STATE if is_state else Outcome.OTHER_TIER, detail)
    number = _find_number(tier, memory)
    detail = f"{file} remembers change number {memory.number}, the tier has {number}"
    mark = tier.writers.get(number)
    if memory.number == number and mark is not None and not memory.owns(mark.token):
        detail += ", taken by another writer"
    elif memory.number == number:
        return Verdict(Outcome.SAME if mark is not None else Outcome.UNMARKED)
    elif memory.number < number:
        return _compare_later(number, memory, facts, detail, is_store=is_store)
    return Verdict(Outcome.OLDER_TIER, detail)


def knows_all(broker: str, tier: TierMark, memories: Mapping[str, TierMemory | None]) -> bool:
    """Return whether the record files include every epoch that a store has taken in the tier.
    Records without an identity of the tier are ignored. `memories`: contents of the record files,
    by file name."""
    facts = Facts(broker, tier, memories.get(STORE_MEMORY), memories.get(STATE_MEMORY))
    found = [
        _compare_memory(file, memory, facts).outcome
        for file, memory in _list_memories(facts)
        if memory.identity
    ]
    return bool(found) and set(found) <= PROVEN | {Outcome.OLDER_TIER}


def _find_number(tier: TierMark, memory: TierMemory) -> int:
    """Return the number of the newest epoch in the tier that is not one of the attempts in
    `memory`. Attempts are skipped, because a start that took an epoch may have been rejected
    afterwards."""
    number = tier.number
    while number and (mark := tier.writers.get(number)) and mark.token in memory.attempts:
        number -= 1
    return number


def _compare_later(
    number: int, memory: TierMemory, facts: Facts, detail: str, *, is_store: bool
) -> Verdict:
    """Find out who has written to the tier since the record `memory` was written. The change number
    of the tier is greater than that of the record."""
    if is_store:
        behind = Verdict(Outcome.STORE_BEHIND, detail)
    else:
        behind = Verdict(Outcome.OLDER_STATE if facts.has_store else Outcome.SAME, detail)
    tier = facts.tier
    outcome = Outcome.AFTER_JOBS if tier.older > memory.number else Outcome.SAME
    for current in range(number, max(memory.number, tier.older), -1):
        mark = tier.writers.get(current)
        if current in tier.writers and mark is None:
            outcome = Outcome.UNMARKED  # an older version wrote
        elif mark is None or mark.kind is WriterKind.STORE:
            return behind
        elif outcome is Outcome.SAME:
            outcome = Outcome.AFTER_JOBS
    if tier.older_store > memory.number:
        return behind
    return Verdict(outcome)


def _compare_contents(facts: Facts, marks: Verdict) -> Verdict:
    contents = facts.contents
    if contents is None:
        return marks
    is_older = marks.outcome is Outcome.OLDER_TIER
    # In an older tier, such segments belong to topics that were deleted since.
    beyond = () if is_older else contents.beyond
    if ahead := contents.ahead + beyond:
        return Verdict(Outcome.STORE_BEHIND, _join(ahead))
    if contents.differing:
        return Verdict(Outcome.OTHER_STORE, _join(contents.differing))
    if contents.hidden:
        return Verdict(Outcome.STATE_BEHIND, _join(contents.hidden))
    if contents.lost:
        return Verdict(Outcome.TIER_BEHIND, _join(contents.lost))
    if marks.outcome is Outcome.OLDER_STATE and (hidden := contents.unknown + contents.missing):
        return Verdict(Outcome.STATE_BEHIND, f"{marks.detail}; {_join(hidden)}")
    # Messages that only the newer tier had can be abandoned, but metadata that names them stays
    # wrong.
    lost = contents.missing + (() if facts.is_told else contents.gaps)
    if is_older and lost:
        return Verdict(Outcome.TIER_BEHIND, f"{marks.detail}; {_join(lost)}")
    if is_older and facts.is_told:
        return Verdict(Outcome.ADOPTED, marks.detail)
    return marks


def _list_memories(facts: Facts) -> list[tuple[str, TierMemory]]:
    """Return the existing records with their file names. The store's record comes first, because it
    has more information."""
    pairs = ((STORE_MEMORY, facts.store), (STATE_MEMORY, facts.state))
    return [(file, memory) for file, memory in pairs if memory is not None]


def _join(sentences: tuple[str, ...]) -> str:
    more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
    return sentences[0] + more
