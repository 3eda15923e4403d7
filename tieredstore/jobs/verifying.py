"""Verify job: runs `scan.verify` in tasks, on this machine or on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import chain

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.jobs.options import VerifyOptions
from tieredstore.jobs.run import TASK_BYTES, JobRun
from tieredstore.jobs.sealing import Sealer
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.findings import Finding, Severity, damage
from tieredstore.scan.listing import Listings, TierFacts, catalogue_of, gather, list_tier
from tieredstore.scan.location import TierLocation
from tieredstore.scan.verify.verification import Verification, VerifyTask, Work, list_extents
from tieredstore.server_process import without_cycle_search

MOST_FINDINGS = 10_000
"""Maximum number of findings in a report. `VerifyOptions.on_finding` receives all."""


@dataclass(slots=True)
class _Pinned:
    """Input of a job, which stays the same when the job is continued. `facts`: facts from the
    listing and the metadata. `metadata_error`: reason why the metadata is not used."""

    facts: TierFacts
    metadata_error: str | None = None


def run_verify(
    run: JobRun,
    location: TierLocation,
    options: VerifyOptions,
    *,
    task_bytes: int = TASK_BYTES,
) -> dict[str, object]:
    """Check a tier, or one topic or queue without the index, and return the JSON report. Listing
    and metadata are read at the start of the first run. Raises Invalid, Unavailable, and Fenced if
    another writer has the epoch that a seal needs (`jobs.sealing`)."""
    kept: list[dict[str, object]] = []
    counts = dict.fromkeys(Severity, 0)

    def tell(finding: Finding) -> None:
        counts[finding.severity] += 1
        if len(kept) < MOST_FINDINGS:
            kept.append(finding.row())
        if options.on_finding is not None:
            options.on_finding(finding)
        if sealer is not None:
            sealer.tell(finding)

    with ExitStack() as stack:
        provider = stack.enter_context(closing(location.connect()))
        with without_cycle_search():
            listings = _listings(provider, location)
            pinned = run.do_once("pin", lambda: _pin(provider, location, listings), _Pinned)
            catalogue = catalogue_of(provider.url, pinned.facts, listings)
        catalogue.require_own_state()
        if location.broker is not None and catalogue.brokers:
            catalogue.select(broker=location.broker)  # Raises if the broker does not exist.
        brokers = sorted({segment.path.split("/", 1)[0] for segment in listings})
        sealer = stack.enter_context(Sealer.acquire(provider, brokers)) if options.seal else None
        unreadable = pinned.metadata_error is not None
        if unreadable:
            text = f"{pinned.metadata_error}. The tier alone is checked"
            tell(damage("metadata-unreadable", text))
        chosen = options.topic, options.queue
        queues = None if chosen == (None, None) else catalogue.select(*chosen, location.broker)
        with_index = options.index and queues is None

        def stages(
            stage: str, work: Work, tasks: Sequence[VerifyTask], kind: object
        ) -> Iterable[list[object]]:
            found: list[list[object]] = run.map(stage, _Connected(location, work), tasks, kind)
            return found

        def load_now() -> TierCatalogue:
            later = _listings(provider, location)
            return catalogue_of(provider.url, _pin(provider, location, later).facts, later)

        checked = Verification(
            provider, catalogue, stages, task_bytes=task_bytes, now=load_now
        ).run(tell, queues=queues, with_index=with_index)
        sealed: dict[str, object] = {}
        if sealer is not None:
            sealable = catalogue.queues if queues is None else queues
            indexes = chain.from_iterable(catalogue.indexes.values() if with_index else ())
            extents = chain(list_extents(sealable), indexes)
            there = (one.id for one in extents if one.listing is not None)
            sealed["sealed"] = asdict(sealer.seal(there, sealable, catalogue.queues, brokers))
    kinds = checked.kinds | ({"metadata-unreadable": 1} if unreadable else {})
    return run.report(
        {
            "tier": catalogue.url,
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
    """Verification work for any process, with a separate connection."""

    location: TierLocation
    work: Work

    def __call__(self, task: VerifyTask) -> list[object]:
        with closing(self.location.connect()) as provider, without_cycle_search():
            return self.work(provider, task, lambda _path, _count_bytes: None)


def _listings(provider: SegmentProvider, location: TierLocation) -> Listings:
    """Return the segment listings of the chosen broker. If it has none, return those of all
    brokers, so that an error can name the brokers."""
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
