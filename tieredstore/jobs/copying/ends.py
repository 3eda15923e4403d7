"""Opens both ends of a copy, and closes them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.usage import Usage, read_usage
from tieredstore.errors import Invalid
from tieredstore.jobs.copying.job import copy_tier, plan_copy
from tieredstore.jobs.copying.origin import load_origin
from tieredstore.jobs.copying.report import CopyOptions, CopyReport, PathSummary, plan_fields
from tieredstore.jobs.copying.target import CopyTarget
from tieredstore.jobs.run import FailureCallback, JobRun
from tieredstore.jobs.stopping import StopSignal
from tieredstore.jobs.target import TierTarget, find_only_broker, refuse_broker, resolve_target
from tieredstore.scan.location import TierLocation, refuse_memory
from tieredstore.scan.opening import INDEX_DIRECTORY, OpenTier, open_location
from tieredstore.tier.writing import begin_stop
from tieredstore.tier_url import parse_tier_url

if TYPE_CHECKING:
    from tieredstore.contracts.segment import SegmentProvider

DEFAULT_WORKERS = 4


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """Where to copy a tier: `to`, a URL; `to_state`, its state directory; `to_config`, a
    broker.conf. The names of cluster and broker stay.

    topics: only these (shell patterns). workers: queues copied at a time. replace, take_over: see
    `CopyOptions`. dry_run: write nothing and take no right.
    """

    to: str
    to_state: Path
    to_config: Path | None = None
    topics: Sequence[str] = ()
    workers: int = DEFAULT_WORKERS
    replace: bool = False
    take_over: bool = False
    dry_run: bool = False

    def options(self) -> CopyOptions:
        return CopyOptions(self.topics, self.workers, self.replace, self.take_over)


def run_copy(
    run: JobRun,
    origin: TierLocation,
    request: CopyRequest,
    *,
    stop: StopSignal | None = None,
    on_failure: FailureCallback | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, object]:
    """Copy what the origin has and the target lacks; see `copy_tier` for what it promises. Gives
    the JSON report (`docs/cli.md`).

    Raises Invalid (bad options, a target that holds something else), Fenced (another writer),
    Corrupt, Unavailable.
    """
    refuse_memory(origin.url)
    with open_location(origin) as opened:
        if request.dry_run:
            return run.report(plan_fields(_plan(origin, opened, request, clock)))
        done = _copy(run, origin, opened, request, stop or StopSignal(), clock)
    if on_failure is not None:
        for _, error in done.failed:
            on_failure(error)
    run.add_stage("copy", done.queues, done.copied_bytes, done.seconds)
    return run.report(done.fields())


def _copy(
    run: JobRun,
    found: TierLocation,
    origin: OpenTier,
    request: CopyRequest,
    stop: StopSignal,
    clock: Clock,
) -> CopyReport:
    broker = origin.broker or find_only_broker(origin.provider)
    goal = _target(origin, request, broker)
    refuse_broker(goal.state)
    # Before anything is made: an origin that is refused leaves no folder behind.
    loaded = load_origin(origin.provider, origin.metadata, broker)
    with ExitStack() as stack:
        provider = goal.open_provider(create=True)
        assert provider is not None
        stack.callback(provider.close)
        _refuse_same(found, origin, goal, provider)
        metadata = registry.metadata_store(goal.config, clock)
        stack.callback(metadata.close)
        back = provider
        if not provider.capabilities.rewritable:
            # One that writes objects keeps what it wrote in memory: another one reads it back.
            back = registry.segment_provider(goal.config)
            stack.callback(back.close)
        stop.on_set(lambda: begin_stop(provider))
        report = copy_tier(
            origin.provider,
            origin.metadata,
            CopyTarget(provider, metadata, broker, clock, back, goal.state),
            broker,
            request.options(),
            run.on_progress,
            loaded=loaded,
            stop=stop.event,
        )
        report.notes += _note_unsealed_index(origin)
        report.origin_usage = _usage(origin.provider)
        report.target_usage = _usage(*{provider, back})
        return report


def _plan(
    found: TierLocation, origin: OpenTier, request: CopyRequest, clock: Clock
) -> list[PathSummary]:
    """What a run would copy and delete, by path. Writes nothing anywhere."""
    broker = origin.broker or find_only_broker(origin.provider)
    goal = _target(origin, request, broker)
    with ExitStack() as stack:
        provider = goal.open_provider(create=False)
        if provider is None:
            provider = registry.provider_class("memory").from_config(goal.config)  # nothing yet
        stack.callback(provider.close)
        _refuse_same(found, origin, goal, provider)
        metadata = registry.metadata_store(goal.config, clock, read_only=True)
        stack.callback(metadata.close)
        target = CopyTarget(provider, metadata, broker, clock)
        return plan_copy(origin.provider, origin.metadata, target, broker, request.options())


def _target(origin: OpenTier, request: CopyRequest, broker: str) -> TierTarget:
    if origin.state is not None and origin.state.resolve() == request.to_state.resolve():
        raise Invalid(f"--to-state {request.to_state}: is the state of the origin; give another")
    refuse_memory(request.to)
    return resolve_target(
        request.to,
        request.to_state,
        cluster=origin.config.broker_cluster_name,
        broker=broker,
        config=request.to_config,
    )


def _refuse_same(
    found: TierLocation, origin: OpenTier, goal: TierTarget, target: SegmentProvider
) -> None:
    """A bucket may have the same name on another endpoint, which is in the query or in the
    configuration."""
    same_query = parse_tier_url(found.url).query == parse_tier_url(goal.url).query
    config = msgspec.structs.replace(
        origin.config,
        broker_name=goal.config.broker_name,
        store_path_root_dir=goal.config.store_path_root_dir,
    )
    if origin.provider.url == target.url and same_query and config == goal.config:
        raise Invalid(f"copy: --from and --to are the same tier, {target.url}")


def _usage(*providers: SegmentProvider) -> Usage | None:
    """All requests of providers, None when they count none."""
    found = [usage for usage in map(read_usage, providers) if usage is not None]
    return Usage(tuple(row for usage in found for row in usage.rows)) if found else None


def _note_unsealed_index(origin: OpenTier) -> list[str]:
    """Keys that are not in the origin tier yet either."""
    if origin.state is None:
        return []
    files = [path for path in (origin.state / INDEX_DIRECTORY).glob("[1-9]*") if path.is_file()]
    if not files:
        return []
    return [
        (
            f"{origin.state / INDEX_DIRECTORY}: {len(files)} index files are not in the origin "
            "tier yet; the keys in them follow once its writer has uploaded them and this is run "
            "again"
        )
    ]
