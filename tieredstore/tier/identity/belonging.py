"""Checks at startup whether store, state directory and tier belong together, and records the
result.

The store and the state directory each have a record file for this. Before an epoch is taken, its
token is written to both record files as an attempt. After the comparison, the epoch is marked in
the tier as a store's, and the identity and change number of the tier are written to both record
files.

If a crash interrupts this, either the epoch is not marked as a store's, or the attempts in a record
file show that its directory owns the newest epoch.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.broker_name import STORE_MEMORY
from tieredstore.contracts.dispatch_source import HistorySource
from tieredstore.contracts.metadata_store import STATUS_DELETED, MetadataStore
from tieredstore.contracts.segment import (
    FileSegmentType,
    NumberedEpoch,
    SegmentProvider,
    WriterEpoch,
    WriterRecord,
)
from tieredstore.contracts.tier_identity import (
    IdentifiedTier,
    StartedEpoch,
    TierMark,
    WriterKind,
    WriterMark,
)
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Invalid, TieredStoreError, Unavailable
from tieredstore.tier.identity.comparison import (
    KEPT_ATTEMPTS,
    PROVEN,
    STATE_MEMORY,
    Contents,
    Facts,
    Outcome,
    TierMemory,
    Verdict,
    compare,
    knows_all,
    read_memory,
    write_memory,
)
from tieredstore.tier.state_files import has_clean_ends

DOCUMENTATION: Final = "docs/belonging.md"
_MEANINGS: Final = {
    Outcome.OTHER_NAME: "the store is that of another broker",
    Outcome.NO_NAME: "the store is new and no brokerName is set, so the broker has the name of its "
    "host, and the tier has history below another name: would this start hide it?",
    Outcome.TIER_MISSING: "the tier of this broker is not there",
    Outcome.TIER_EMPTY: "the tier is empty, and lacks what this broker has in its tier: is it that "
    "of another tier?",
    Outcome.OTHER_TIER: "it is not the tier that is remembered: is it that of another tier, "
    "cluster or broker?",
    Outcome.OTHER_STATE: "the metadata in config/ is that of another tier",
    Outcome.TIER_BEHIND: "the tier is an older copy",
    Outcome.STORE_BEHIND: "the local store is an older copy, or another store has written since: "
    "it would give out queue offsets again that the tier has",
    Outcome.STATE_BEHIND: "the metadata in config/ is an older copy",
    Outcome.STORE_EMPTY: "holds messages of this broker, but the local store is new",
    Outcome.OTHER_STORE: "the messages in the tier are not those of the local store",
}
_PROCEDURES: Final = {
    Outcome.OTHER_NAME: "Set brokerName to the remembered name: its history is below that name. "
    "For a new broker, give another storePathRootDir and another tier folder or prefix",
    Outcome.NO_NAME: "Set brokerName in broker.conf: to the name of this broker's history where it "
    "has one (a recreated container has another host name), or to a name of its own where "
    "it is another broker",
    Outcome.TIER_MISSING: "Mount the disk, or correct the path of the tier. When the tier is lost "
    "for good, move config/tieredStoreMetadata.json* and tieredstore.ends.json out of the store "
    "directory, then start once with tieredStoreAdopt=true. It uploads the local messages "
    "again",
    Outcome.TIER_EMPTY: "Mount the disk, or correct the path, bucket or prefix of the tier. When "
    "the tier is lost for good, move config/tieredStoreMetadata.json* and tieredstore.ends.json "
    "out of the store directory, then start once with tieredStoreAdopt=true. It uploads the local "
    "messages again",
    Outcome.OTHER_TIER: "Correct the path, bucket or prefix of the tier. When the broker moves to "
    "a copy of its tier, make the metadata there with `tieredstore rebuild metadata --force`, then "
    "start once with tieredStoreAdopt=true",
    Outcome.OTHER_STATE: "Put the config/ of this broker back, or make the metadata again with "
    "`tieredstore rebuild metadata --force`",
    Outcome.TIER_BEHIND: "Put the newer tier back. When it is lost for good, make the metadata "
    "again with `tieredstore rebuild metadata --force`, then start once with "
    "tieredStoreAdopt=true. It uploads the local messages again",
    Outcome.STORE_BEHIND: "Put the newer store back. When it is lost, move this store directory "
    "away (`tieredstore cat --store` still reads it) and make a new one with `tieredstore "
    "restore`: offsets then continue behind those of the tier. If only messages of one topic are "
    "concerned and the tier's are not wanted, `tieredstore tier reset TOPIC` empties it there",
    Outcome.STATE_BEHIND: "Put the newer config/ back, or make the metadata again with "
    "`tieredstore rebuild metadata --force`",
    Outcome.STORE_EMPTY: "When its disk was lost, set tieredStoreAdopt=true for one start, or run "
    "`tieredstore tier adopt`: offsets then continue behind those of the tier. If this is another "
    "broker, give it another brokerName",
    Outcome.OTHER_STORE: "Give the store that wrote this tier, or another brokerName. When the "
    "messages of one topic alone are concerned and the tier's are not wanted, `tieredstore tier "
    "reset TOPIC` empties it there",
}

_STATE_PROCEDURES: Final = {
    Outcome.TIER_MISSING: "Mount the disk, or correct the path of the tier. When the tier is lost "
    "for good, move the state directory away and run again: a new tier begins",
    Outcome.TIER_EMPTY: "Mount the disk, or correct the path, bucket or prefix of the tier. When "
    "the tier is lost for good, move the state directory away and run again: a new tier begins",
}
"""Recovery procedure for each outcome, for a job whose state directory is not a store."""


def refuse(
    verdict: Verdict,
    url: str,
    broker: str,
    path: str,
    last_writer: str | None,
    *,
    is_store: bool = True,
) -> TieredStoreError:
    """Return the error for a rejected start: Unavailable if the location of the tier does not
    exist, otherwise Invalid.

    `path`: path of the store or state directory.
    `last_writer`: description of the tier's last writer.
    `is_store`: whether the directory is a store.
    """
    outcome = verdict.outcome
    detail = f" ({verdict.detail})" if verdict.detail else ""
    written = f"; the tier was last written by {last_writer}" if last_writer else ""
    kind = Unavailable if outcome is Outcome.TIER_MISSING else Invalid
    procedure = _PROCEDURES[outcome]
    if not is_store:
        procedure = _STATE_PROCEDURES.get(outcome, procedure)
    return kind(
        f"{url}: broker {broker!r}, {'store' if is_store else 'state'} {path}: "
        f"{_MEANINGS[outcome]}{detail}{written}. "
        f"{procedure}. See {DOCUMENTATION}, {outcome.value!r}",
        path=path,
    )


def has_history(metadata: MetadataStore) -> bool:
    """Return whether the tier has or had messages of the broker, according to the metadata."""
    return any(
        entry.type is not FileSegmentType.INDEX
        and entry.status != STATUS_DELETED
        and (entry.size > 0 or entry.base_offset > 0)
        for entry in metadata.segments()
    )


def find_known_broker(metadata: MetadataStore, own: str | None = None) -> str | None:
    """Return the broker whose segments are in the metadata, or None without segments. The metadata
    of a renamed Java broker has segments of both names. If `own` is one of them, it is returned."""
    brokers = dict.fromkeys(entry.path.partition("/")[0] for entry in metadata.segments())
    return own if own in brokers else next(iter(brokers), None)


def find_other_broker(provider: SegmentProvider, broker: str) -> str | None:
    """Return the name of another broker that uses the tier, or None. Raises Unavailable."""
    place = find_layer(provider, IdentifiedTier)
    names = place.list_brokers() if place is not None else iter(())
    return next((name for name in names if name != broker), None)


class Belonging:
    """Checks that a tier belongs to a state directory and, for a broker, to the store in it. The
    state directory must be locked. A tier in memory is never compared or recorded.

    `kind`: kind of the new owner.
    `source`: the store, or None for a job or a store without marks.
    `is_told`: value of `tieredStoreAdopt`.
    `gives_offsets`: whether the store accepts messages. A store that a job creates does not.
    `is_named`: whether the configuration names the broker. Otherwise the broker has the name of the
    host.
    """

    def __init__(
        self,
        provider: SegmentProvider,
        broker: str,
        state: Path,
        kind: WriterKind = WriterKind.JOB,
        *,
        source: HistorySource | None = None,
        is_told: bool = False,
        gives_offsets: bool = True,
        is_named: bool = True,
    ) -> None:
        self._provider = provider
        self._broker = broker
        self._root = state
        self._kind = kind
        self._source = source
        self._is_told = is_told
        self._is_named = is_named
        is_store = kind is WriterKind.STORE and gives_offsets
        self._marked_kind = WriterKind.STARTING if is_store else WriterKind.JOB
        self._place = find_layer(provider, IdentifiedTier)
        self._tier = TierMark()
        self._mark: WriterMark | None = None
        self._verdict = Verdict(Outcome.SAME)
        self._known_broker: str | None = None
        self.knows_history = False
        """Whether the tier had messages according to the metadata, at the last comparison."""

    @property
    def store(self) -> str:
        """Identity of the store that took the epoch. Empty for a job and before `claim`."""
        return "" if self._mark is None else self._mark.store

    @property
    def needs_contents(self) -> bool:
        """Whether segments and messages must be compared, because earlier records do not prove that
        store and tier belong together."""
        return self._verdict.outcome not in PROVEN

    def is_up_to_date(self) -> bool:
        """Return whether this state directory has a record of the tier, and no store with another
        state directory has written to the tier since. The tier may still be an older copy. Call
        this after `claim`."""
        files = (STORE_MEMORY, STATE_MEMORY)
        memories = {file: read_memory(self._root / file) for file in files}
        return knows_all(self._broker, self._tier, memories)

    def check_name(self) -> None:
        """Raise Invalid if the store or the state directory belongs to another broker. Sends no
        request to the tier."""
        facts = Facts(self._broker, TierMark(is_empty=True), self._read_store(), self._read_state())
        verdict = compare(facts)
        if verdict.outcome is Outcome.OTHER_NAME:
            raise self._refuse(verdict)

    def claim(self, metadata: MetadataStore | None) -> WriterMark | None:
        """Compare what the state directory and the tier recorded about each other, then record the
        attempt to take the epoch. Returns the mark that the new epoch leaves in the tier, or None
        if the tier stores no marks. `metadata`: metadata of the state directory, or None for a
        repair, which compares nothing. Raises Unavailable, Corrupt, and Invalid with the recovery
        procedure."""
        if not self._provider.capabilities.durable:
            return None
        store, state = self._read_store(), self._read_state()
        numbers = [it.number for it in (store, state) if it is not None and it.identity]
        if self._place is not None:
            self._tier = self._place.read_mark(self._broker, min(numbers, default=0))
        if metadata is not None:
            self._check(metadata, store, state)
        if self._place is None:
            return None
        is_store = self._kind is WriterKind.STORE
        newest = self._tier.writers.get(self._tier.number)
        own = (store.store if store is not None else "") or uuid.uuid4().hex
        self._mark = WriterMark(
            self._tier.identity or uuid.uuid4().hex,
            uuid.uuid4().hex,
            self._marked_kind,
            own if is_store else "",
            self._tier.number,
            newest is not None and newest.kind is WriterKind.STARTING,
        )
        if is_store:
            self._remember_attempt(self._mark, store, state)
        return self._mark

    def compare_contents(self, metadata: MetadataStore, contents: Contents) -> None:
        """Repeat the comparison of `claim`, including the segments and queues in the tier. Raises
        Invalid if store, state directory and tier do not belong together."""
        if self._provider.capabilities.durable:
            self._check(metadata, self._read_store(), self._read_state(), contents)

    def record(self, epoch: WriterEpoch) -> None:
        """Record the tier and the epoch in the record files of the store and the state directory.
        If the owner of the epoch is a store, the epoch is first marked in the tier as a store's.
        Raises Fenced, Invalid, Unavailable."""
        mark = self._mark
        if mark is None:
            return
        started = find_layer(epoch, StartedEpoch)
        if mark.kind is WriterKind.STARTING and started is not None:
            started.become_store()
        numbered = find_layer(epoch, NumberedEpoch)
        memory = TierMemory(
            broker=self._broker,
            identity=mark.identity,
            number=0 if numbered is None else numbered.number,
            token=mark.token,
            url=self._provider.url,
        )
        self._write(memory, mark.store)

    def _check(
        self,
        metadata: MetadataStore,
        store: TierMemory | None,
        state: TierMemory | None,
        contents: Contents | None = None,
    ) -> None:
        is_empty = self._source is not None and self._source.is_empty
        tier = self._tier
        # The metadata has the name of a broker whose store and state remember none.
        is_first = self._kind is WriterKind.STORE and (store is None or not store.identity)
        if contents is not None or self._place is None or tier.is_empty or is_empty or is_first:
            metadata.load()
            self._known_broker = find_known_broker(metadata, self._broker)
            self.knows_history = has_history(metadata) or has_clean_ends(self._root)
        if self._place is None and self.knows_history:
            # Only a listing shows whether a tier without marks has data.
            first = next(iter(self._provider.list(self._broker)), None)
            tier = TierMark(is_empty=first is None)
        facts = Facts(
            self._broker,
            tier,
            store,
            state,
            has_store=self._kind is WriterKind.STORE,
            is_store_empty=is_empty,
            knows_history=self.knows_history,
            known_broker=self._known_broker,
            is_told=self._is_told,
            contents=contents,
        )
        verdict = compare(facts)
        if verdict.outcome is Outcome.NEW_TIER and is_empty and not self._is_named:
            other = find_other_broker(self._provider, self._broker)
            verdict = compare(replace(facts, other_broker=other))
        if not verdict.starts:
            raise self._refuse(verdict)
        self._verdict = verdict

    def _refuse(self, verdict: Verdict) -> TieredStoreError:
        record = find_layer(self._provider, WriterRecord)
        writer = None if record is None else record.find_last_writer(self._broker)
        is_store = self._kind is WriterKind.STORE or (self._root / STORE_MEMORY).exists()
        own = (self._provider.url, self._broker, str(self._root))
        return refuse(verdict, *own, writer, is_store=is_store)

    # Memories

    def _read_store(self) -> TierMemory | None:
        is_store = self._kind is WriterKind.STORE
        return read_memory(self._root / STORE_MEMORY) if is_store else None

    def _read_state(self) -> TierMemory | None:
        return read_memory(self._root / STATE_MEMORY)

    def _remember_attempt(
        self, mark: WriterMark, store: TierMemory | None, state: TierMemory | None
    ) -> None:
        """Write the token of a store's epoch to both record files before the epoch is taken. Not
        needed for a job."""
        for path, before in ((STORE_MEMORY, store), (STATE_MEMORY, state)):
            memory = before or TierMemory(broker=self._broker)
            attempts = (*memory.attempts, mark.token)[-KEPT_ATTEMPTS:]
            own = mark.store if path == STORE_MEMORY else ""
            noted = msgspec.structs.replace(
                memory, broker=self._broker, attempts=attempts, store=own
            )
            write_memory(self._root / path, noted)

    def _write(self, memory: TierMemory, store: str) -> None:
        if self._kind is WriterKind.STORE:
            write_memory(self._root / STORE_MEMORY, msgspec.structs.replace(memory, store=store))
        write_memory(self._root / STATE_MEMORY, memory)
