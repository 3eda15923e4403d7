"""The job `rebuild index`: builds index files from the commit logs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.errors import Invalid
from tieredstore.jobs.index.build import BuiltIndex, Capacity
from tieredstore.jobs.index.collect import Collected, CollectTask, collect
from tieredstore.jobs.index.files import build_files, commit, keep_file, summary
from tieredstore.jobs.index.staging import Staging, staging_of
from tieredstore.jobs.index.tier import IndexSummary, IndexTier, OldIndex, open_index_tier
from tieredstore.jobs.options import RebuildIndexOptions
from tieredstore.jobs.run import TASK_BYTES, JobRun, gather_groups
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import ScanBounds, ScanRange, plan_queue
from tieredstore.scan.times import epoch_ms


@dataclass(frozen=True, slots=True)
class _Pinned:
    """Input of a job, which stays the same when the job is continued. `queues`: queue offsets
    [from, until) to index, by path. `old`: index files before the job. `kept`: those of them that
    the job keeps."""

    since_ms: int | None
    until_ms: int | None
    topic_ids: dict[str, int]
    queues: dict[str, tuple[int, int]]
    old: tuple[OldIndex, ...]
    kept: tuple[IndexSummary, ...]
    local_begins: tuple[int, ...]


def run_rebuild_index(
    run: JobRun, location: TierLocation, options: RebuildIndexOptions | None = None
) -> dict[str, object]:
    """Build the index files of a broker's part of a tier, and return the JSON report. The tier must
    have no index file unless `force` is set. With bounded times, files for the messages within the
    bounds are added to existing files. Raises Invalid, Fenced (a broker runs), Corrupt,
    Unavailable."""
    options, now_ms = options or RebuildIndexOptions(), SYSTEM_CLOCK.now_ms()
    since_ms, until_ms = epoch_ms(options.since, now_ms), epoch_ms(options.until, now_ms)
    is_partial = since_ms is not None or until_ms is not None
    if options.force and is_partial:
        raise Invalid("replacing all index files by those of some messages loses the others' keys")
    with open_index_tier(location, take_over=options.take_over) as tier:
        capacity = Capacity.of(tier.config)
        pinned = run.do_once(
            "pin", lambda: _pin(tier, since_ms, until_ms, force=options.force), _Pinned
        )
        _check_same_ids(tier, pinned)
        with staging_of(run, location, options.staging) as staging:
            tasks = list(_tasks(tier, location, staging, capacity, pinned))
            collected = run.map("collect", collect, tasks, Collected)
            taken = {old.begin_ms for old in pinned.old} | set(pinned.local_begins)
            rows = [outcome.staged for outcome in collected if outcome.staged is not None]
            [built] = build_files(run, staging, capacity, [rows], taken)
            wanted, remove_old = _in_order(tier, pinned, built)
            committed = commit(run, tier, staging, wanted, pinned.old, remove_old=remove_old)
        return run.report(
            {
                "tier": tier.provider.url,
                "broker": tier.broker,
                "queues": len(pinned.queues),
                "messages": sum(outcome.messages for outcome in collected),
                **summary(collected, committed),
            }
        )


def _pin(tier: IndexTier, since_ms: int | None, until_ms: int | None, *, force: bool) -> _Pinned:
    is_partial = since_ms is not None or until_ms is not None
    old = tuple(tier.old_index())
    there = sum(index.is_there for index in old)
    if there and not force and not is_partial:
        raise Invalid(
            f"{tier.provider.url}: has {there} index files of broker {tier.broker!r}. --force "
            "replaces them, --since and --until add files for messages that they lack"
        )
    ids = tier.topic_ids()
    unknown = sorted({queue.topic for queue in tier.queues()} - set(ids))
    if unknown:
        raise Invalid(
            f"{tier.provider.url}: has messages of {', '.join(unknown)}, of which the metadata "
            "knows no topic. `rebuild metadata` first"
        )
    queues = {
        queue.path: (
            queue.consume_queue_min_offset,
            max(queue.consume_queue_max_offset, queue.recorded_end),
        )
        for queue in tier.queues()
    }
    stay = () if force or not there else tuple(tier.files(old))
    tier.check_slots(stay)
    begins = tuple(sorted(tier.local_begins()))
    return _Pinned(since_ms, until_ms, dict(ids), queues, old, stay, begins)


def _check_same_ids(tier: IndexTier, pinned: _Pinned) -> None:
    """Raise Invalid if topic ids have changed since the first run, because keys with the old ids
    would not be found."""
    known = tier.topic_ids() if tier.has_state else {}
    changed = sorted(
        topic for topic, number in pinned.topic_ids.items() if known.get(topic, number) != number
    )
    if changed:
        raise Invalid(
            f"{tier.provider.url}: {', '.join(changed)}: another topic id than when this run "
            "began. Start it from the beginning",
            topic=changed[0],
        )


def _in_order(
    tier: IndexTier, pinned: _Pinned, built: list[BuiltIndex]
) -> tuple[list[BuiltIndex], bool]:
    """Return the files to put into the tier, in time order, and whether to delete all old files
    afterwards. If a new file begins before a kept file, the kept files are stored again, because
    index files must ascend in time: Java discards a file that begins before the first one."""
    newest = max((file.begin_ms for file in pinned.kept), default=0)
    if pinned.kept and all(file.begin_ms > newest for file in built):
        return built, False
    wanted = [*built, *(keep_file(tier, file) for file in pinned.kept)]
    return sorted(wanted, key=lambda file: file.begin_ms), True


def _tasks(
    tier: IndexTier, location: TierLocation, staging: Staging, capacity: Capacity, pinned: _Pinned
) -> Iterator[CollectTask]:
    for ranges in gather_groups(_ranges(tier, pinned), lambda r: r.size_bytes, TASK_BYTES):
        names = [f"{r.queue.path} {r.from_offset} {r.until_offset}" for r in ranges]
        yield CollectTask(
            hashlib.sha256("\n".join(names).encode()).hexdigest()[:16],
            sum(r.size_bytes for r in ranges),
            location,
            ranges,
            tuple(pinned.topic_ids[r.queue.topic] for r in ranges),
            staging,
            capacity.block_rows,
        )


def _ranges(tier: IndexTier, pinned: _Pinned) -> Iterator[ScanRange]:
    def plan_one(queue: QueueFiles) -> list[ScanRange]:
        bounds = ScanBounds(
            *pinned.queues[queue.path],
            pinned.since_ms,
            pinned.until_ms,
            range_bytes=TASK_BYTES,
            narrow=True,
        )
        with QueueReader(tier.provider, queue) as reader:
            return plan_queue(reader, bounds)

    queues = [queue for queue in tier.queues() if queue.path in pinned.queues]
    for ranges in map_ahead(tier.provider, plan_one, queues):
        yield from ranges
