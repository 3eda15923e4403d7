"""Advice job: weigh all choices of settings for a workload, and report the best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tieredstore import registry
from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.contracts.request_model import ModelledProvider, RequestModel
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.usage import Prices
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Invalid
from tieredstore.jobs.advising.gathering import gather_workload
from tieredstore.jobs.advising.read_costs import ReadCosts
from tieredstore.jobs.advising.settings import (
    Settings,
    list_read_settings,
    list_upload_settings,
    read_settings,
)
from tieredstore.jobs.advising.timeline import Backend
from tieredstore.jobs.advising.upload_costs import model_upload_costs
from tieredstore.jobs.advising.weighing import (
    Limits,
    LocalRates,
    Option,
    Scales,
    choose,
    find_topic_levels,
)
from tieredstore.jobs.advising.workload import Observed, Workload, classify
from tieredstore.local.read_only import open_read_only
from tieredstore.scan.location import TierLocation
from tieredstore.scan.opening import open_location
from tieredstore.tier.fetch.memory_limit import usable_memory_bytes
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier_url import show_url

FILE_TIMES_MS: Final = (0.1, 1.0)
"""Median and 99th percentile of the time to read from a file."""
TIERED_LEVELS: Final = tuple(level for level in StorageLevel if level is not StorageLevel.DISABLE)


@dataclass(frozen=True, slots=True)
class AdviceOptions:
    """Options of the advice. `backend`: None for typical response times. `prices`: None to compare
    requests and bytes instead of costs. `memory_bytes`: memory of the broker's machine, or 0 for
    that of this machine. `is_object_store`: assume that the tier is in an object store. `most`:
    maximum number of choices in the report."""

    backend: Backend | None = None
    prices: Prices | None = None
    limits: Limits = field(default_factory=Limits)
    memory_bytes: int = 0
    is_object_store: bool = False
    most: int = 5


def advise_store(
    store: Path, location: TierLocation, observed: Observed, options: AdviceOptions
) -> dict[str, object]:
    """Return the JSON report for a store, its tier and an observation (`docs/tuning.md`). Write
    nothing. Raises Invalid, Corrupt, Unavailable."""
    config = location.config
    with ExitStack() as stack:
        tier = stack.enter_context(open_location(location))
        model = _find_model(tier.provider, is_object_store=options.is_object_store)
        local = open_read_only(store, config)
        stack.callback(local.shutdown)
        topic_filter = TopicFilter(config)
        topic_filter.take_levels(local.dispatch_source.topic_storage_levels())
        workload = gather_workload(
            local.dispatch_source,
            tier.catalogue().queues,
            observed,
            topic_filter.is_uploaded,
            config.file_reserved_time_hours,
        )
    report = advise(workload, config, model, options)
    return {"store": str(store), "tier": show_url(location.url), **report}


def advise(
    workload: Workload, config: StoreConfig, model: RequestModel, options: AdviceOptions
) -> dict[str, object]:
    """Weigh all choices for a workload. Raises Invalid if none is within the limits."""
    capabilities, limits = model.capabilities, options.limits
    now = read_settings(config, capabilities, model.groups)
    classes = classify(workload)
    uploads = {
        chosen: model_upload_costs(
            classes, chosen.apply(config, capabilities), model.with_group_bytes(chosen.group_bytes)
        )
        for chosen in list_upload_settings(now.uploads, has_groups=model.groups is not None)
    }
    backend = options.backend or (Backend() if model.is_metered else Backend(*FILE_TIMES_MS))
    reads = ReadCosts(workload, uploads[now.uploads].stored, config, model, backend)
    rates = LocalRates.of(workload)
    memory_bytes = options.memory_bytes or usable_memory_bytes()
    scales = Scales(
        config,
        rates,
        _share_topics(workload),
        options.prices,
        model.is_metered,
        memory_bytes * config.access_message_in_memory_max_ratio // 100,
    )

    def weigh(settings: Settings) -> Option:
        return scales.weigh(settings, uploads[settings.uploads], reads)

    tier_hours = max((load.retention_hours for load in workload.queues), default=0)
    by_level: dict[StorageLevel, list[Option]] = {level: [] for level in StorageLevel}
    for choice in list_read_settings(now.reads, tier_hours, tuple(StorageLevel)):
        has_uploads = choice.level is not StorageLevel.DISABLE
        for chosen in uploads if has_uploads else [now.uploads]:
            by_level[choice.level].append(weigh(Settings(chosen, choice)))
    tiered = [option for level in TIERED_LEVELS for option in by_level[level]]
    best = choose(tiered, limits, options.most)
    if not best:
        raise Invalid(
            "no settings are within these limits. The nearest: "
            + ", ".join(f"{name} {value}" for name, value in _find_nearest(tiered).items())
        )
    settings = best[0].settings
    beside = [
        weigh(Settings(settings.uploads, replace(settings.reads, level=level)))
        for level in TIERED_LEVELS
    ]
    levels = find_topic_levels(best[0], beside, limits)
    # Without the tier a lost disk loses everything.
    without = {StorageLevel.DISABLE: replace(limits, loss_ms=None)}
    shown = [("now", weigh(now)), *((str(n), option) for n, option in enumerate(best, 1))]
    return {
        "from_ms": int(workload.begin_ms),
        "until_ms": int(workload.end_ms),
        "queues": len(workload.queues),
        "modelled_queues": len(classes),
        "messages_per_s": round(rates.messages_per_s, 3),
        "bytes_per_s": round(rates.log_bytes_per_s, 1),
        "readings": len(workload.readings),
        "assumed": list(workload.assumed),
        "is_priced": options.prices is not None,
        "choices": [{"choice": name, **option.describe()} for name, option in shown],
        "levels": [
            option.describe()
            for level, of_level in by_level.items()
            for option in choose(of_level, without.get(level, limits), 1)
        ],
        "topics": [
            {"topic": name, **weight.describe()} for name, weight in sorted(best[0].topics.items())
        ],
        "requests_by_operation": [
            {"operation": operation, "file_type": file_type, "requests": round(count)}
            for (operation, file_type), count in sorted(best[0].whole.requests.items())
        ],
        "broker_conf": settings.make_fragment(now, config, model),
        "topic_attributes": {
            topic: f"+tiered.storage.level={level.name}" for topic, level in levels.items()
        },
    }


def _find_nearest(options: Sequence[Option]) -> dict[str, object]:
    losses = [option.whole.loss_ms or 0.0 for option in options]
    return {
        "loss_s": round(min(losses) / 1000, 1),
        "read_p99_ms": round(min(option.whole.read_p99_ms for option in options), 1),
        "disk_bytes": round(min(option.whole.disk_bytes for option in options)),
    }


def _find_model(provider: SegmentProvider, *, is_object_store: bool) -> RequestModel:
    if is_object_store:
        model: RequestModel = registry.object_store_model()
        return model
    found = find_layer(provider, ModelledProvider)
    if found is None:
        raise Invalid(
            "the provider of this tier has no model of its requests: pass --object-store to get "
            "the advice for an object store"
        )
    return found.make_request_model()


def _share_topics(workload: Workload) -> Mapping[str, float]:
    sizes: defaultdict[str, float] = defaultdict(float)
    for load in workload.queues:
        sizes[load.key.topic] += load.arrivals.messages_per_s * load.arrivals.record_bytes
    total = sum(sizes.values())
    return {topic: size / total if total else 0.0 for topic, size in sizes.items()}
