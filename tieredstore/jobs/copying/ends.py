"""Opens both ends of a copy, and closes them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.usage import Usage, read_usage
from tieredstore.errors import Invalid
from tieredstore.jobs.copying.job import ProgressCallback, copy_tier, plan_copy
from tieredstore.jobs.copying.report import CopyOptions, CopyReport, PathSummary
from tieredstore.jobs.copying.target import CopyTarget
from tieredstore.jobs.target import TierTarget
from tieredstore.scan.opening import INDEX_DIRECTORY, OpenTier, open_source
from tieredstore.scan.source import load_config, locate, placed, refuse_memory
from tieredstore.tier_url import parse_tier_url

if TYPE_CHECKING:
    from tieredstore.contracts.segment import SegmentProvider

DEFAULT_WORKERS = 4
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """What to copy, from where to where. `from_url`, `to_url`: tiers; `from_state`, `to_state`:
    directories; `from_config`, `to_config`: broker.conf files.

    cluster, broker: names in the source, None where it has one only; they are kept in the target.
    topics: only these (shell patterns). replace: see `CopyOptions`.
    """

    from_url: str
    to_url: str
    to_state: Path
    from_state: Path | None = None
    from_config: Path | None = None
    to_config: Path | None = None
    cluster: str | None = None
    broker: str | None = None
    topics: Sequence[str] = ()
    workers: int = DEFAULT_WORKERS
    replace: bool = False
    take_over: bool = False

    def options(self) -> CopyOptions:
        return CopyOptions(self.topics, self.workers, self.replace, self.take_over)


def run_copy(
    request: CopyRequest,
    progress: ProgressCallback | None = None,
    *,
    stop: threading.Event | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> CopyReport:
    """Copy what the source has and the target lacks; see `copy_tier` for what it promises.

    Raises Invalid (bad options, a target that holds something else), Fenced (another writer),
    Corrupt, Unavailable.
    """
    with _source(request) as source, ExitStack() as stack:
        broker = _broker_of(source)
        goal = _target(request, source, broker)
        provider = goal.open_provider(create=True)
        assert provider is not None
        stack.callback(provider.close)
        _refuse_same(request, source, provider)
        metadata = registry.metadata_store(goal.config, clock)
        stack.callback(metadata.close)
        back = provider
        if not provider.capabilities.rewritable:
            # One that writes objects keeps what it wrote in memory: another one reads it back.
            back = registry.segment_provider(goal.config)
            stack.callback(back.close)
        report = copy_tier(
            source.provider,
            source.metadata,
            CopyTarget(provider, metadata, broker, clock, back),
            broker,
            request.options(),
            progress,
            stop=stop,
        )
        report.notes += _unsealed(source)
        report.source_usage = _usage(source.provider)
        report.target_usage = _usage(*{provider, back})
        return report


def plan_run(request: CopyRequest, *, clock: Clock = SYSTEM_CLOCK) -> list[PathSummary]:
    """What a run would copy and delete, by path. Writes nothing anywhere."""
    with _source(request) as source, ExitStack() as stack:
        broker = _broker_of(source)
        goal = _target(request, source, broker)
        provider = goal.open_provider(create=False)
        if provider is None:
            provider = registry.provider_class("memory").from_config(goal.config)  # nothing yet
        stack.callback(provider.close)
        _refuse_same(request, source, provider)
        metadata = registry.metadata_store(goal.config, clock, read_only=True)
        stack.callback(metadata.close)
        target = CopyTarget(provider, metadata, broker, clock)
        return plan_copy(source.provider, source.metadata, target, broker, request.options())


@contextmanager
def _source(request: CopyRequest) -> Iterator[OpenTier]:
    refuse_memory(request.from_url)
    found = locate(
        request.from_url,
        cluster=request.cluster,
        broker=request.broker,
        state=request.from_state,
        config=request.from_config,
    )
    with open_source(found) as opened:
        yield opened


def _broker_of(source: OpenTier) -> str:
    """The broker to copy: a state directory is that of one."""
    if source.broker is not None:
        return source.broker
    found = sorted({item.id.path.split("/", 1)[0] for item in source.provider.list()})
    known = ", ".join(found) or "none"
    if len(found) != 1:
        raise Invalid(
            f"{source.provider.url}: brokers in the tier: {known}; choose one with --broker (each "
            "is copied on its own, with a --to-state of its own)"
        )
    return found[0]


def _target(request: CopyRequest, source: OpenTier, broker: str) -> TierTarget:
    if (
        request.from_state is not None
        and request.from_state.resolve() == request.to_state.resolve()
    ):
        raise Invalid(f"--to-state {request.to_state}: is the state of the source; give another")
    if request.to_state.exists() and not request.to_state.is_dir():
        raise Invalid(f"--to-state {request.to_state}: not a directory", path=str(request.to_state))
    cluster = source.config.broker_cluster_name
    refuse_memory(request.to_url)
    loaded = load_config(request.to_config, cluster=cluster, broker=broker)
    config = placed(loaded.config, request.to_url, state=request.to_state)
    config = msgspec.structs.replace(config, broker_cluster_name=cluster, broker_name=broker)
    location = Path(config.tier_file_path) if request.to_url.startswith("file:") else None
    return TierTarget(config, request.to_url, location, loaded.warnings)


def _refuse_same(request: CopyRequest, source: OpenTier, target: SegmentProvider) -> None:
    """A bucket may have the same name on another endpoint, which is in the query or the file."""
    endpoints = [parse_tier_url(url).query for url in (request.from_url, request.to_url)]
    same_place = endpoints[0] == endpoints[1] and request.from_config == request.to_config
    if source.provider.url == target.url and same_place:
        raise Invalid(f"copy: --from and --to are the same tier, {target.url}")


def _usage(*providers: SegmentProvider) -> Usage | None:
    """All requests of providers, None when they count none."""
    found = [usage for usage in map(read_usage, providers) if usage is not None]
    return Usage(tuple(row for usage in found for row in usage.rows)) if found else None


def _unsealed(source: OpenTier) -> list[str]:
    """Keys that are not in the source tier yet either."""
    if source.state is None:
        return []
    files = [path for path in (source.state / INDEX_DIRECTORY).glob("[1-9]*") if path.is_file()]
    if not files:
        return []
    return [
        (
            f"{source.state / INDEX_DIRECTORY}: {len(files)} index files are not in the source "
            "tier yet; the keys in them follow once its writer has uploaded them and this is run "
            "again"
        )
    ]
