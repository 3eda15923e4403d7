"""Health check of a tier from outside of its broker, for probes and for people. Without a listing
it is cheap: it reads the state directory, and sends a few requests to the tier. It writes no files
and takes no locks."""

from __future__ import annotations

import enum
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS, STATUS_DELETED, MetadataStore
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider, WriterRecord
from tieredstore.contracts.usage import read_usage, usage_fields
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Invalid
from tieredstore.jobs.target import check_broker, find_only_broker
from tieredstore.local.recovery.store_lock import is_owned
from tieredstore.scan.findings import Severity
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation
from tieredstore.tier.identity.belonging import find_known_broker
from tieredstore.tier.state_files import is_held
from tieredstore.tier_url import show_url

_REASONS_SHOWN = 20
_SEGMENTS_ASKED_FOR = 3


class Health(enum.StrEnum):
    """Health states. DEGRADED: an operator should act, but no message is known to be lost."""

    UP = "up"
    DEGRADED = "degraded"
    DAMAGED = "damaged"


@dataclass(slots=True)
class _Found:
    status: Health = Health.UP
    reasons: list[str] = field(default_factory=list)

    def add(self, status: Health, reason: str) -> None:
        if self.status is not Health.DAMAGED:
            self.status = status
        self.reasons.append(reason)


def check_health(
    location: TierLocation,
    *,
    max_age_ms: int | None = None,
    needs_writer: bool = False,
    lists: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, object]:
    """Check a tier and its state directory, and return the JSON report (`docs/cli.md`).
    `max_age_ms`: age of the newest message above which the state is DEGRADED. `needs_writer`: the
    state is DEGRADED if no process on this machine writes to the state directory. `lists`: compare
    the metadata with a listing of the tier, and report contradictions as DAMAGED. This also happens
    if the tier has none of a few segments that the metadata names. Raises Invalid without a state
    directory or with that of another tier or broker, Corrupt for damaged metadata, Unavailable if
    the tier does not answer."""
    if location.state is None:
        raise Invalid("give --state: the state directory of the tier's writer")
    found = _Found()
    is_writing = is_owned(location.state) or is_held(location.state)
    with closing(location.connect()) as provider:
        with closing(registry.metadata_store(location.config, read_only=True)) as metadata:
            metadata.load()
            # A listing for the broker's name would cost too much.
            broker = location.broker or find_known_broker(metadata) or find_only_broker(provider)
            check_broker(location.state, metadata, broker)
            record = find_layer(provider, WriterRecord)
            writer = None if record is None else record.find_last_writer(broker)
            if lists or not _knows_segments(provider, metadata, broker):
                _compare(provider, metadata, broker, found)
            facts = _gather(metadata, clock, max_age_ms, found)
        if needs_writer and is_writing is False:
            found.add(Health.DEGRADED, f"no process writes with {location.state}")
        return {
            "tier": show_url(location.url),
            "cluster": location.config.broker_cluster_name,
            "broker": broker,
            "status": found.status.value,
            "reasons": found.reasons,
            "writer": writer,
            "is_writing": is_writing,
            **facts,
            **usage_fields(read_usage(provider)),
        }


def _knows_segments(provider: SegmentProvider, metadata: MetadataStore, broker: str) -> bool:
    """Check a few segments of the metadata, with one request each. Return whether any of them is in
    the tier."""
    entries = (
        entry.id
        for entry in metadata.segments()
        if entry.size and entry.status != STATUS_DELETED and entry.path.startswith(f"{broker}/")
    )
    return any(provider.open(found).size() > 0 for found in islice(entries, _SEGMENTS_ASKED_FOR))


def _compare(
    provider: SegmentProvider, metadata: MetadataStore, broker: str, found: _Found
) -> None:
    catalogue = load_catalogue(provider, metadata, broker=broker)
    catalogue.require_own_state()
    damage = [one for one in catalogue.findings if one.severity is Severity.DAMAGE]
    for one in damage[:_REASONS_SHOWN]:
        found.add(Health.DAMAGED, str(one.to_error()))
    if len(damage) > _REASONS_SHOWN:
        found.add(Health.DAMAGED, f"and {len(damage) - _REASONS_SHOWN} more. `verify` tells all")


def _gather(
    metadata: MetadataStore, clock: Clock, max_age_ms: int | None, found: _Found
) -> dict[str, object]:
    """Collect the metadata's size, the age of the newest message, and pending deletions."""
    segments = size_bytes = undeleted = 0
    newest_ms = -1
    for entry in metadata.segments():
        if entry.status == STATUS_DELETED:
            undeleted += 1
            continue
        segments += 1
        size_bytes += entry.size
        is_log = entry.type is FileSegmentType.COMMIT_LOG
        if is_log and entry.begin_timestamp_ms != NEVER_WRITTEN_MS:
            newest_ms = max(newest_ms, entry.end_timestamp_ms)
    age_ms = None if newest_ms < 0 else max(clock.now_ms() - newest_ms, 0)
    if max_age_ms is not None and (age_ms is None or age_ms > max_age_ms):
        age = "there is no message" if age_ms is None else f"it is {age_ms / 1000:,.0f} s old"
        found.add(
            Health.DEGRADED,
            f"the newest message is wanted within {max_age_ms / 1000:,.0f} s: {age}",
        )
    topics = metadata.topics()
    return {
        "topics": len(topics),
        "queues": sum(len(metadata.queues(topic.topic)) for topic in topics),
        "segments": segments,
        "bytes": size_bytes,
        "newest_timestamp": None if newest_ms < 0 else newest_ms,
        "age_seconds": None if age_ms is None else round(age_ms / 1000, 3),
        "undeleted": undeleted,
    }
