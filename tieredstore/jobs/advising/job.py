"""The advice: a workload weighed over all choices, and the best of them as people use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tieredstore import registry
from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.contracts.request_model import ModelledProvider, RequestModel
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Invalid
from tieredstore.jobs.advising.loads.classes import classify
from tieredstore.jobs.advising.loads.gathering import gather_workload
from tieredstore.jobs.advising.local_disk import LocalRates
from tieredstore.jobs.advising.reads.backend import Backend
from tieredstore.jobs.advising.reads.costs import ReadCosts
from tieredstore.jobs.advising.report import (
    describe_option,
    describe_weight,
    list_requests,
    make_fragment,
)
from tieredstore.jobs.advising.settings import (
    Settings,
    list_read_settings,
    list_upload_settings,
    read_settings,
)
from tieredstore.jobs.advising.uploads.costs import UploadCosts, model_upload_costs
from tieredstore.jobs.advising.weighing import (
    Limits,
    Option,
    Scales,
    choose,
    find_topic_levels,
)
from tieredstore.local.read_only import open_read_only
from tieredstore.scan.opening import open_location
from tieredstore.tier.fetch.memory_limit import usable_memory_bytes
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier_url import show_url

if TYPE_CHECKING:
    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.contracts.usage import Prices
    from tieredstore.jobs.advising.loads.observed import Observed
    from tieredstore.jobs.advising.loads.workload import Workload
    from tieredstore.scan.location import TierLocation


FILE_TIMES_MS: Final = (0.1, 1.0)
"""Of a read of a file, the middle and the 99th percentile."""
TIERED_LEVELS: Final = tuple(level for level in StorageLevel if level is not StorageLevel.DISABLE)


@dataclass(frozen=True, slots=True)
class AdviceOptions:
    """What is asked for. backend: None for what such a backend takes, about. prices: None for
    requests and bytes alone. memory_bytes: of the broker's machine, 0 for this one's.
    is_object_store: as if the tier were on one. most: choices shown."""

    backend: Backend | None = None
    prices: Prices | None = None
    limits: Limits = field(default_factory=Limits)
    memory_bytes: int = 0
    is_object_store: bool = False
    most: int = 5


def advise_store(
    store: Path, location: TierLocation, observed: Observed, options: AdviceOptions
) -> dict[str, object]:
    """Look at a store, its tier and what was observed, and give the JSON report
    (`docs/tuning.md`). Writes nothing. Raises Invalid, Corrupt, Unavailable."""
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
    """Weigh all choices for a workload. Raises Invalid when nothing is within the limits."""
    capabilities = model.capabilities
    now = read_settings(config, capabilities, model.groups)
    upload_choices = list_upload_settings(now.uploads, has_groups=model.groups is not None)
    classes = classify(workload)
    uploads: dict[object, UploadCosts] = {
        chosen: model_upload_costs(
            classes,
            chosen.apply(config, capabilities),
            model.with_group_bytes(chosen.group_bytes),
        )
        for chosen in upload_choices
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
    tier_hours = max((load.retention_hours for load in workload.queues), default=0)
    read_choices = list(list_read_settings(now.reads, tier_hours, tuple(StorageLevel)))
    weighed = [
        scales.weigh(Settings(chosen, read_choice), uploads[chosen], reads)
        for read_choice in read_choices
        for chosen in (
            upload_choices if read_choice.level is not StorageLevel.DISABLE else [now.uploads]
        )
    ]
    today = scales.weigh(now, uploads[now.uploads], reads)
    tiered = [one for one in weighed if one.settings.reads.level is not StorageLevel.DISABLE]
    best = choose(tiered, options.limits, options.most)
    if not best:
        raise Invalid(
            "no settings are within these limits; the nearest: "
            + ", ".join(f"{name} {value}" for name, value in _find_nearest(tiered).items())
        )
    chosen = best[0].settings
    beside = [
        scales.weigh(
            replace(chosen, reads=replace(chosen.reads, level=level)),
            uploads[chosen.uploads],
            reads,
        )
        for level in TIERED_LEVELS
    ]
    levels = find_topic_levels(best[0], beside, options.limits)
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
        "choices": [
            {"choice": name, **describe_option(option)}
            for name, option in [("now", today), *((str(n), o) for n, o in enumerate(best, 1))]
        ],
        "levels": [describe_option(option) for option in _best_of_levels(weighed, options.limits)],
        "topics": [
            {"topic": name, **describe_weight(weight)}
            for name, weight in sorted(best[0].topics.items())
        ],
        "requests_by_operation": list_requests(best[0].whole),
        "broker_conf": make_fragment(best[0].settings, now, config, model),
        "topic_attributes": {
            topic: f"+tiered.storage.level={level.name}" for topic, level in levels.items()
        },
    }


def _best_of_levels(weighed: Sequence[Option], limits: Limits) -> list[Option]:
    """The best of each storage level; without the tier a lost disk loses everything."""
    without = replace(limits, loss_ms=None)
    found = []
    for level in StorageLevel:
        of_level = [option for option in weighed if option.settings.reads.level is level]
        found += choose(of_level, limits if level in TIERED_LEVELS else without, 1)
    return found


def _find_nearest(weighed: Sequence[Option]) -> dict[str, object]:
    """The least that there is of what can be limited."""
    losses = [option.whole.loss_ms or 0.0 for option in weighed]
    return {
        "loss_s": round(min(losses) / 1000, 1),
        "read_p99_ms": round(min(option.whole.read_p99_ms for option in weighed), 1),
        "disk_bytes": round(min(option.whole.disk_bytes for option in weighed)),
    }


def _find_model(provider: SegmentProvider, *, is_object_store: bool) -> RequestModel:
    if is_object_store:
        model: RequestModel = registry.object_store_model()
        return model
    found = find_layer(provider, ModelledProvider)
    if found is None:
        raise Invalid(
            "the provider of this tier does not tell what it asks its backend for; with "
            "--object-store the advice is as for one"
        )
    return found.make_request_model()


def _share_topics(workload: Workload) -> Mapping[str, float]:
    sizes: dict[str, float] = {}
    for load in workload.queues:
        size = load.arrivals.messages_per_s * load.arrivals.record_bytes
        sizes[load.key.topic] = sizes.get(load.key.topic, 0.0) + size
    total = sum(sizes.values())
    return {topic: size / total if total else 0.0 for topic, size in sizes.items()}
