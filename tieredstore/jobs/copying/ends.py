"""Opening and closing of the origin and the target of a copy."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import msgspec

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.usage import Usage, read_usage
from tieredstore.errors import Invalid
from tieredstore.jobs.copying.job import copy_tier, plan_copy
from tieredstore.jobs.copying.origin import load_origin
from tieredstore.jobs.copying.report import CopyReport, PathSummary, plan_fields
from tieredstore.jobs.copying.target import CopyTarget
from tieredstore.jobs.options import CopyTierOptions
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.stopping import StopSignal
from tieredstore.jobs.target import TierTarget, find_only_broker, refuse_broker, resolve_target
from tieredstore.scan.location import TierLocation, refuse_memory
from tieredstore.scan.opening import INDEX_DIRECTORY, OpenTier, open_location
from tieredstore.tier.writing import begin_stop
from tieredstore.tier_url import parse_tier_url


def run_copy(
    run: JobRun,
    origin: TierLocation,
    request: CopyTierOptions,
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, object]:
    """Copy data of the origin that the target lacks, and return the JSON report (`docs/cli.md`).
    See `copy_tier` for the guarantees. Raises Invalid (bad options, a target with other content),
    Fenced (another writer), Corrupt, Unavailable."""
    refuse_memory(origin.url)
    with open_location(origin) as opened:
        if request.dry_run:
            return run.report(plan_fields(_plan(origin, opened, request, clock)))
        done = _copy(run, origin, opened, request, clock)
    if request.on_failure is not None:
        for _, error in done.failed:
            request.on_failure(error)
    run.add_stage("copy", done.queues, done.copied_bytes, done.seconds)
    return run.report(done.fields())


def _copy(
    run: JobRun,
    found: TierLocation,
    origin: OpenTier,
    request: CopyTierOptions,
    clock: Clock,
) -> CopyReport:
    stop = request.stop or StopSignal()
    broker = origin.broker or find_only_broker(origin.provider)
    goal = _target(origin, request, broker)
    refuse_broker(goal.state)
    # Checked first, so that a rejected origin leaves no folder behind.
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
            # A provider that writes objects keeps its data in memory, so another one reads it back.
            back = registry.segment_provider(goal.config)
            stack.callback(back.close)
        stop.on_set(lambda: begin_stop(provider))
        report = copy_tier(
            origin.provider,
            origin.metadata,
            CopyTarget(provider, metadata, broker, clock, back, goal.state),
            broker,
            request,
            run.on_progress,
            loaded=loaded,
            stop=stop.event,
            config=goal.config,
        )
        report.notes += _note_unsealed_index(origin)
        report.origin_usage = _usage(origin.provider)
        report.target_usage = _usage(*{provider, back})
        return report


def _plan(
    found: TierLocation, origin: OpenTier, request: CopyTierOptions, clock: Clock
) -> list[PathSummary]:
    """Return what a run would copy and delete, by path, without writing anything."""
    broker = origin.broker or find_only_broker(origin.provider)
    goal = _target(origin, request, broker)
    with ExitStack() as stack:
        provider = goal.open_provider(create=False)
        if provider is None:
            provider = registry.provider_class("memory").from_config(goal.config)  # an empty tier
        stack.callback(provider.close)
        _refuse_same(found, origin, goal, provider)
        metadata = registry.metadata_store(goal.config, clock, read_only=True)
        stack.callback(metadata.close)
        target = CopyTarget(provider, metadata, broker, clock)
        return plan_copy(origin.provider, origin.metadata, target, broker, request)


def _target(origin: OpenTier, request: CopyTierOptions, broker: str) -> TierTarget:
    state = Path(request.to_state)
    if origin.state is not None and origin.state.resolve() == state.resolve():
        raise Invalid(f"--to-state {request.to_state}: is the state of the origin; give another")
    refuse_memory(request.to)
    return resolve_target(
        request.to,
        state,
        cluster=origin.config.broker_cluster_name,
        broker=broker,
        config=None if request.to_config is None else Path(request.to_config),
    )


def _refuse_same(
    found: TierLocation, origin: OpenTier, goal: TierTarget, target: SegmentProvider
) -> None:
    """Reject a target that is the origin. Buckets of the same name on different endpoints are
    different. The endpoint is in the URL's query or the configuration."""
    same_query = parse_tier_url(found.url).query == parse_tier_url(goal.url).query
    config = msgspec.structs.replace(
        origin.config,
        broker_name=goal.config.broker_name,
        store_path_root_dir=goal.config.store_path_root_dir,
    )
    if origin.provider.url == target.url and same_query and config == goal.config:
        raise Invalid(f"copy: --from and --to are the same tier, {target.url}")


def _usage(*providers: SegmentProvider) -> Usage | None:
    found = [usage for usage in map(read_usage, providers) if usage is not None]
    return Usage(tuple(row for usage in found for row in usage.rows)) if found else None


def _note_unsealed_index(origin: OpenTier) -> list[str]:
    if origin.state is None:
        return []
    files = [path for path in (origin.state / INDEX_DIRECTORY).glob("[1-9]*") if path.is_file()]
    note = (
        f"{origin.state / INDEX_DIRECTORY}: {len(files)} index files are not in the origin tier "
        "yet. The keys in them follow once its writer has uploaded them and this is run again"
    )
    return [note] if files else []
