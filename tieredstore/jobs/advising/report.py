"""What the advice looks like: rows of a report, and the lines of a broker.conf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tieredstore.config import FIELDS_BY_KEY, StorageLevel

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig
    from tieredstore.contracts.request_model import RequestModel
    from tieredstore.jobs.advising.settings import Settings
    from tieredstore.jobs.advising.weighing import Option, Weight


def make_fragment(
    settings: Settings, now: Settings, config: StoreConfig, model: RequestModel
) -> str:
    """Make the lines of a broker.conf, of the settings that change. now: those that there are."""
    fields: dict[str, Any] = {
        **settings.uploads.fields(config, model.capabilities),
        **settings.reads.fields(),
    }
    keys = {info.name: key for key, info in FIELDS_BY_KEY.items()}
    lines = []
    for name, value in fields.items():
        if getattr(config, name) != value:
            shown = value.name if isinstance(value, StorageLevel) else value
            lines.append(f"{keys[name]}={shown}")
    group_bytes = settings.uploads.group_bytes
    if model.groups is not None and group_bytes != now.uploads.group_bytes:
        lines.append(f"{model.groups.setting}={group_bytes}")
    return "".join(f"{line}\n" for line in lines)


def describe_option(option: Option) -> dict[str, object]:
    """Describe settings and what they come to."""
    uploads, reads = option.settings.uploads, option.settings.reads
    return {
        "level": reads.level.name,
        "local_hours": reads.local_hours,
        "interval_s": round(uploads.interval_ms / 1000),
        "batch_messages": uploads.batch_messages,
        "batch_bytes": uploads.batch_bytes,
        "segment_bytes": uploads.segment_bytes,
        "group_bytes": uploads.group_bytes,
        "cache_bytes": reads.cache_bytes,
        **describe_weight(option.whole),
    }


def describe_weight(weight: Weight) -> dict[str, object]:
    """Describe what settings come to."""
    reads = weight.reads
    return {
        "cost_usd": None if weight.cost_usd is None else round(weight.cost_usd, 4),
        "requests": round(weight.request_count),
        "stored_bytes": round(weight.stored_bytes),
        "disk_bytes": round(weight.disk_bytes),
        "loss_s": None if weight.loss_ms is None else round(weight.loss_ms / 1000, 1),
        "cold_messages": round(reads.messages),
        "read_bytes": round(reads.read_bytes),
        "read_p50_ms": _round(reads.percentile(0.5)),
        "read_p99_ms": _round(reads.percentile(0.99)),
        "waiting_share": round(reads.waiting_share, 4),
        "waiting_p50_ms": _round(reads.percentile(0.5, waiting=True)),
        "waiting_p99_ms": _round(reads.percentile(0.99, waiting=True)),
    }


def list_requests(weight: Weight) -> list[dict[str, object]]:
    """List the requests a month by operation and file type."""
    return [
        {"operation": operation, "file_type": file_type, "requests": round(count)}
        for (operation, file_type), count in sorted(weight.requests.items())
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
