"""The job `verify`: `scan.verify` in tasks that run here or on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from typing import Any

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.cycles import without_cycle_search
from tieredstore.errors import Corrupt
from tieredstore.jobs.run import TASK_BYTES, JobRun
from tieredstore.jobs.sealing import Sealer
from tieredstore.scan.catalogue import (
    Listings,
    TierCatalogue,
    TierFacts,
    catalogue_of,
    gather,
    list_tier,
)
from tieredstore.scan.findings import Finding, OnFinding, Severity, damage
from tieredstore.scan.location import TierLocation
from tieredstore.scan.verify.verification import (
    Verification,
    VerifyTask,
    Work,
    list_extents,
)

MOST_FINDINGS = 10_000
"""Findings of a report; `report` of `run_verify` is told all."""


@dataclass(slots=True)
class _Pinned:
    """What the verification is of. metadata_error: why the metadata cannot be read; the tier alone
    is then checked."""

    facts: TierFacts
    metadata_error: str | None = None


def run_verify(
    run: JobRun,
    location: TierLocation,
    *,
    topic: str | None = None,
    queue_id: int | None = None,
    with_index: bool = True,
    seal: bool = False,
    on_finding: OnFinding | None = None,
    task_bytes: int = TASK_BYTES,
) -> dict[str, object]:
    """Check a tier, or one topic or queue of it (then without the index). Gives the JSON report;
    `on_finding` is told each finding besides, in the same order. seal: give checksums to what has
    none and is not damaged, as the only writer (`jobs.sealing`).

    The listing and the metadata are those of the moment at which the first run began. Raises
    Invalid, Unavailable; Fenced where another one has the right to write that a seal needs.
    """
    kept: list[dict[str, object]] = []
    counts = dict.fromkeys(Severity, 0)

    def tell(finding: Finding) -> None:
        counts[finding.severity] += 1
        if len(kept) < MOST_FINDINGS:
            kept.append(finding.row())
        if on_finding is not None:
            on_finding(finding)
        if sealer is not None:
            sealer.tell(finding)

    provider = location.connect()
    with ExitStack() as stack:
        stack.callback(provider.close)
        with without_cycle_search():
            listings = _listings(provider, location)
            pinned = run.do_once("pin", lambda: _pin(provider, location, listings), _Pinned)
            catalogue = catalogue_of(provider.url, pinned.facts, listings)
        catalogue.require_own_state()
        if location.broker is not None and catalogue.brokers:
            catalogue.select(broker=location.broker)  # raises where there is no such broker
        brokers = sorted({segment.path.split("/", 1)[0] for segment in listings})
        sealer = stack.enter_context(Sealer.acquire(provider, brokers)) if seal else None
        unreadable = pinned.metadata_error is not None
        if unreadable:
            tell(
                damage("metadata-unreadable", f"{pinned.metadata_error}; the tier alone is checked")
            )
        some = topic is not None or queue_id is not None
        queues = catalogue.select(topic, queue_id, location.broker) if some else None

        def stages(
            stage: str, work: Work, tasks: Sequence[VerifyTask], kind: Any
        ) -> Iterable[list[Any]]:
            found: list[list[Any]] = run.map(stage, _Connected(location, work), tasks, kind)
            return found

        def load_now() -> TierCatalogue:
            later = _listings(provider, location)
            return catalogue_of(provider.url, _pin(provider, location, later).facts, later)

        checked = Verification(
            provider, catalogue, stages, task_bytes=task_bytes, now=load_now
        ).run(tell, queues=queues, with_index=with_index and not some)
        sealed: dict[str, object] = {}
        if sealer is not None:
            extents = list(list_extents(catalogue.queues if queues is None else queues))
            if with_index and not some:
                extents += [one for found in catalogue.indexes.values() for one in found]
            done = sealer.seal((one.id for one in extents if one.listing is not None), brokers)
            sealed = {"sealed": asdict(done)}
        kinds = dict(checked.kinds)
        if unreadable:
            kinds["metadata-unreadable"] = 1
        return run.report(
            {
                "tier": provider.url,
                "queues": checked.queues,
                "messages": checked.messages,
                "message_bytes": checked.message_bytes,
                "segments": checked.segments + checked.index_segments,
                "index_items": checked.index_items,
                "covered_bytes": checked.covered_bytes,
                "uncovered_bytes": checked.uncovered_bytes,
                "damage": checked.damage + unreadable,
                "notes": checked.notes,
                "kinds": dict(sorted(kinds.items())),
                "findings": kept,
                "findings_left_out": sum(counts.values()) - len(kept),
                **sealed,
            }
        )


@dataclass(frozen=True, slots=True)
class _Connected:
    """Work through a connection of its own, in whatever process it is called."""

    location: TierLocation
    work: Work

    def __call__(self, task: VerifyTask) -> list[Any]:
        with closing(self.location.connect()) as provider, without_cycle_search():
            return self.work(provider, task, _ignore_progress)


def _ignore_progress(path: str, count_bytes: int) -> None:
    del path, count_bytes


def _listings(provider: SegmentProvider, location: TierLocation) -> Listings:
    """Of the broker that is wanted; of all where it has nothing, so that the error can name
    them."""
    found = list_tier(provider, location.broker)
    return found or list_tier(provider)


def _pin(provider: SegmentProvider, location: TierLocation, listings: Listings) -> _Pinned:
    metadata = location.metadata()
    try:
        brokers = {segment.path.split("/", 1)[0] for segment in listings}
        broker = location.broker if location.broker in brokers else None
        try:
            return _Pinned(gather(provider, listings, metadata, broker))
        except Corrupt as error:
            return _Pinned(gather(provider, listings), str(error))
    finally:
        if metadata is not None:
            metadata.close()
