"""The job: lists a tier once, has its ends and its index read, and writes the metadata once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec

from tieredstore.clock import SYSTEM_CLOCK, Clock, ManualClock
from tieredstore.errors import Invalid
from tieredstore.jobs.metadata.former import NOTHING_FORMER, FormerMetadata
from tieredstore.jobs.metadata.found import Found
from tieredstore.jobs.metadata.index import (
    FoundIndex,
    IndexTask,
    Probes,
    TopicIds,
    find_index,
    list_undecided_topics,
    topic_ids,
)
from tieredstore.jobs.metadata.queues import FoundQueue, QueuesTask, find_queues
from tieredstore.jobs.metadata.state_files import StateFiles
from tieredstore.jobs.metadata.unsealed import find_unsealed
from tieredstore.jobs.run import TASK_BYTES, JobRun, gather_groups
from tieredstore.jobs.target import find_only_broker
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, load_catalogue
from tieredstore.scan.location import TierLocation, place_tier
from tieredstore.tier.writing import begin_stop, take_right
from tieredstore.tier_url import show_url

_TASK_QUEUES = 500
SPREAD = 32
"""Messages of a queue that are looked up where those at its ends tell nothing."""


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """exact_times: read every message, not the first and the last of each segment, for its times.
    force: replace metadata that is there. take_over: end another writer's right where the backend
    can. dry_run: write nothing and take no right."""

    exact_times: bool = False
    force: bool = False
    take_over: bool = False
    dry_run: bool = False


def run_rebuild_metadata(
    run: JobRun,
    location: TierLocation,
    state: Path,
    options: RebuildOptions | None = None,
    *,
    former: FormerMetadata = NOTHING_FORMER,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, object]:
    """Make the metadata of a broker's part of a tier, in a state directory (a broker's
    `storePathRootDir`), from the tier alone. Returns the report (`docs/jobs.md`).

    The broker is that of `location`, or the only one there. Holds the writer epoch
    meanwhile. former: what metadata of an earlier time knew. Raises Invalid (no such broker,
    metadata that is there), Fenced (a writer lives), Unavailable.
    """
    options = options or RebuildOptions()
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
        confirm_writer = _confirm_nothing
        if not options.dry_run:
            epoch = take_right(stack, provider, broker, state, take_over=options.take_over)
            stack.callback(begin_stop, provider)
            confirm_writer = epoch.confirm
        catalogue = load_catalogue(provider, broker=broker)
        if not catalogue.brokers:
            raise Invalid(f"{provider.url}: no broker {broker!r} in the tier")
        listed = [queue for queue in catalogue.queues if queue.broker == broker]
        queues = _find_queues(
            run, location, listed, "queues", exact_times=options.exact_times, spread=0
        )
        extents = catalogue.indexes.get(broker, ())
        index = _find_index(run, location, extents, "index", queues, former.taken_ms)
        ids = _topic_ids(run, location, state, listed, queues, extents, index, former)
        found = Found(broker, queues, index, ids, moment_ms, former)
        kept: list[Path] = []
        if not options.dry_run:
            confirm_writer()  # what was listed under this right counts
            files.check_free()
            kept = files.replace(found.fill, ManualClock(moment_ms), force=options.force)
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


def _confirm_nothing() -> None:
    """A dry run has no right that could be lost."""


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
    probes = Probes.of(queues)
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
    index: Sequence[FoundIndex],
    former: FormerMetadata,
) -> TopicIds:
    """Asks more messages of the topics whose ends no item of the index names: what came last may
    not be in it yet, what came first not any more."""
    topics = sorted({*(queue.topic for queue in queues), *(key.topic for key in former.queues)})
    votes = [*index, *find_unsealed(state, location.config, Probes.of(queues))]
    undecided = list_undecided_topics(topics, votes)
    if others := {topic for topic in undecided if topic not in former.topic_ids}:
        again = [queue for queue in listed if queue.topic in others]
        more = _find_queues(run, location, again, "queues again", exact_times=False, spread=SPREAD)
        votes += _find_index(run, location, extents, "index again", more)
        votes += find_unsealed(state, location.config, Probes.of(more))
    return topic_ids(topics, votes, former.topic_ids)
