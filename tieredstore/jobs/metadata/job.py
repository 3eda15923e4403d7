"""Job that lists a tier, reads segment ends and index in tasks, and writes the metadata once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec

from tieredstore.clock import SYSTEM_CLOCK, Clock, ManualClock
from tieredstore.errors import Invalid
from tieredstore.jobs.metadata.former import NOTHING_FORMER, FormerMetadata
from tieredstore.jobs.metadata.found import Found
from tieredstore.jobs.metadata.index import (
    SPREAD,
    FoundIndex,
    IndexTask,
    TopicIds,
    find_index,
    find_run_votes,
    find_unsealed,
    list_undecided_topics,
    pack_probes,
    topic_ids,
)
from tieredstore.jobs.metadata.queues import FoundQueue, QueuesTask, find_queues
from tieredstore.jobs.metadata.state_files import StateFiles
from tieredstore.jobs.options import RebuildMetadataOptions
from tieredstore.jobs.run import TASK_BYTES, JobRun, gather_groups
from tieredstore.jobs.target import find_only_broker
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation, place_tier
from tieredstore.tier.deleted import records
from tieredstore.tier.identity.belonging import Belonging
from tieredstore.tier.state_files import find_left_records
from tieredstore.tier.writing import begin_stop, take_right
from tieredstore.tier_url import show_url

_TASK_QUEUES = 500


def run_rebuild_metadata(
    run: JobRun,
    location: TierLocation,
    state: Path,
    options: RebuildMetadataOptions | None = None,
    *,
    former: FormerMetadata = NOTHING_FORMER,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, object]:
    """Rebuild the metadata of a broker's part of a tier in a state directory (a broker's
    `storePathRootDir`), from the tier alone. Returns the report (`docs/jobs.md`). The broker is the
    one of `location`, or the only one in the tier. The run takes the writer epoch. `former`: facts
    from earlier metadata. Raises Invalid (no such broker, existing metadata), Fenced (a writer is
    active), Unavailable."""
    options = options or RebuildMetadataOptions()
    with ExitStack() as stack:
        provider = location.connect()
        stack.callback(provider.close)
        broker = location.broker or find_only_broker(provider)
        config = place_tier(location.config, location.url, state=state)
        files = StateFiles(msgspec.structs.replace(config, broker_name=broker), state)
        files.check_free()

        def moment() -> int:
            present = files.list_present()
            if present and not options.force and not options.dry_run:
                raise files.refusal(present)
            return clock.now_ms()

        moment_ms = run.do_once("moment", moment, int)
        confirm_writer = remember = _do_nothing
        # A repair compares nothing, since it creates the metadata of this tier.
        belonging = Belonging(provider, broker, state)
        if options.dry_run:
            belonging.claim(None)
        else:
            epoch = take_right(
                *(stack, provider, broker, state), take_over=options.take_over, belonging=belonging
            )
            stack.callback(begin_stop, provider)
            confirm_writer, remember = epoch.confirm, partial(belonging.record, epoch)
        catalogue = load_catalogue(provider, broker=broker)
        if not catalogue.brokers and not former.queues:
            raise Invalid(f"{provider.url}: no broker {broker!r} in the tier")
        deleted = records.find_deleted(provider, broker)
        if belonging.is_up_to_date():
            deleted = records.merge_left(deleted, find_left_records(state))
        listed = list(_list_present(catalogue.queues, broker, deleted))
        queues = _find_queues(
            run, location, listed, "queues", exact_times=options.exact_times, spread=0
        )
        extents = catalogue.indexes.get(broker, ())
        index = _find_index(run, location, extents, "index", queues, former.taken_ms)
        former = former.drop_deleted(deleted)
        votes = [*index, find_run_votes(provider, broker)]
        ids = _topic_ids(run, location, state, listed, queues, extents, votes, former, deleted)
        found = Found(broker, queues, index, ids, moment_ms, former)
        kept: list[Path] = []
        if not options.dry_run:
            confirm_writer()  # Only the listing under this epoch counts.
            files.check_free()
            kept = files.replace(found.fill, ManualClock(moment_ms), force=options.force)
            remember()
        return run.report(
            {
                "tier": show_url(location.url),
                "cluster": location.config.broker_cluster_name,
                "broker": broker,
                "metadata": None if options.dry_run else str(files.main),
                "kept": [str(path) for path in kept],
                **found.report(catalogue.findings),
            }
        )


def _list_present(
    queues: Iterable[QueueFiles], broker: str, deleted: Mapping[str, records.DeletedTopic]
) -> Iterator[QueueFiles]:
    """Yield the queues of a broker, without segments of deleted topics, which an older copy of a
    tier may still have."""
    for queue in queues:
        log, units = (
            tuple(extent for extent in file if not records.is_deleted(extent.id, deleted))
            for file in (queue.commit_log, queue.consume_queue)
        )
        if queue.broker == broker and (log or units):
            yield replace(queue, commit_log=log, consume_queue=units)


def _do_nothing() -> None:
    """Do nothing. Used by a dry run instead of ownership checks and writes."""


def _find_queues(
    run: JobRun,
    location: TierLocation,
    queues: Sequence[QueueFiles],
    stage: str,
    *,
    exact_times: bool,
    spread: int,
) -> list[FoundQueue]:
    most_bytes = TASK_BYTES if exact_times else 2**63
    groups = gather_groups(queues, lambda queue: queue.size_bytes, most_bytes, _TASK_QUEUES)
    tasks = [QueuesTask(location, group, exact_times, spread) for group in groups]
    return list(chain.from_iterable(run.map(stage, find_queues, tasks, list[FoundQueue])))


def _find_index(
    run: JobRun,
    location: TierLocation,
    extents: Sequence[SegmentExtent],
    stage: str,
    queues: Iterable[FoundQueue],
    known_until_ms: int = 0,
) -> list[FoundIndex]:
    probes = pack_probes(queues)
    groups = gather_groups(extents, lambda extent: extent.size_bytes, TASK_BYTES)
    tasks = [IndexTask(location, group, probes, known_until_ms) for group in groups]
    return list(chain.from_iterable(run.map(stage, find_index, tasks, list[FoundIndex])))


def _topic_ids(
    run: JobRun,
    location: TierLocation,
    state: Path,
    listed: Sequence[QueueFiles],
    queues: Sequence[FoundQueue],
    extents: Sequence[SegmentExtent],
    found: Sequence[FoundIndex],
    former: FormerMetadata,
    deleted: Mapping[str, records.DeletedTopic],
) -> TopicIds:
    """Find the topic ids. If the first and last messages of a topic are not in the index, look up
    more of them. The newest may not be indexed yet, and the oldest may have expired."""
    topics = sorted({*(queue.topic for queue in queues), *(key.topic for key in former.queues)})
    votes = [*found, *find_unsealed(state, location.config, pack_probes(queues))]
    undecided = list_undecided_topics(topics, votes)
    if others := {topic for topic in undecided if topic not in former.topic_ids}:
        again = [queue for queue in listed if queue.topic in others]
        more = _find_queues(run, location, again, "queues again", exact_times=False, spread=SPREAD)
        votes += _find_index(run, location, extents, "index again", more)
        votes += find_unsealed(state, location.config, pack_probes(more))
    return topic_ids(topics, votes, former.topic_ids, deleted)
