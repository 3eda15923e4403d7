"""`tieredstore advise`: settings that suit a broker and its consumers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tieredstore.cli.options.collecting import number, path, switch, value
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.prices import BROKER_PRICES, price_option, read_prices
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.rows import Output, OutputFormat, Tables

if TYPE_CHECKING:
    from tieredstore.contracts.usage import Prices
    from tieredstore.jobs.advising.timeline import Backend
    from tieredstore.jobs.advising.weighing import Limits


_MIB = 1 << 20
_GIB = 1 << 30
_FIGURES = (
    "cost_usd",
    "requests",
    "stored_bytes",
    "disk_bytes",
    "loss_s",
    "read_p50_ms",
    "read_p99_ms",
    "waiting_share",
)
_SETTINGS = (
    "level",
    "local_hours",
    "interval_s",
    "batch_messages",
    "batch_bytes",
    "segment_bytes",
    "group_bytes",
    "cache_bytes",
)
TABLES: Tables = {
    "choices": ("choice", *_SETTINGS, *_FIGURES),
    "levels": ("level", "local_hours", "interval_s", *_FIGURES),
    "topics": ("topic", *_FIGURES),
    "requests_by_operation": ("operation", "file_type", "requests"),
}


@click.command("advise")
@click.argument("store", metavar="STORE", type=click.Path(path_type=Path))
@tier_options(has_defaults=True)
@value(
    "--offsets",
    "FILE[@TIME]",
    "A consumerOffset.json, and when it was copied. Default: its modification time. Give at "
    "least two.",
    multiple=True,
)
@path(
    "--trace",
    "PATH",
    "A trace that the store recorded (tieredStoreTraceEnable), in place of --offsets: its "
    "folder, that of a store, or a file.",
)
@path(
    "--prices",
    "FILE",
    "A TOML file of prices, one NAME = USD a line, with the names of --price.",
    name="price_file",
)
@price_option(BROKER_PRICES)
@switch("--object-store", "Advise as if the tier were on an object store.")
@value(
    "--latency-ms",
    "P50[,P99]",
    "Time to the first byte of a read of the backend.  [default: 30 for an object store]",
)
@value(
    "--bandwidth",
    "MIB",
    "MiB a second that all reads of the backend bring together.",
    type=click.FloatRange(min=0.001),
)
@value(
    "--memory",
    "GIB",
    "Memory of the broker's machine.  [default: that of this one]",
    type=click.FloatRange(min=0.01),
)
@value("--max-loss", "TIME", "Lose no more with the local disk: 60s, 10m, 1h.")
@value(
    "--max-read-ms",
    "MS",
    "99 % of the reads of the tier take no longer.",
    type=click.FloatRange(min=0),
)
@value("--max-disk", "GIB", "Need no larger local disk.", type=click.FloatRange(min=0))
@number("--top", 1, 50, "Choices to show.", default=5)
@output_option
def advise(
    store: Path,
    tier: TierOptions,
    offsets: tuple[str, ...],
    trace: Path | None,
    price_file: Path | None,
    prices: dict[str, float],
    object_store: bool,
    latency_ms: str | None,
    bandwidth: float | None,
    memory: float | None,
    max_loss: str | None,
    max_read_ms: float | None,
    max_disk: float | None,
    top: int,
    out: Output,
) -> None:
    """Find settings that suit STORE (a broker's storePathRootDir), its tier and its consumers.

    Replays the load over a model with the store's own rules: the load between two snapshots of
    consumer offsets, or the load of a trace. The settings are storage level, local retention,
    commit interval, batch, segment and cache size. Without prices, compares requests and bytes.
    Writes nothing.
    """
    from tieredstore.cli.composition import locate_tier
    from tieredstore.clock import SYSTEM_CLOCK
    from tieredstore.jobs.advising.job import AdviceOptions, advise_store
    from tieredstore.jobs.advising.observing import (
        observe_snapshots,
        parse_snapshot_name,
        read_snapshots,
        read_trace,
    )

    if trace is not None and offsets:
        raise click.UsageError("--trace and --offsets: expected one of them")
    now_ms = SYSTEM_CLOCK.now_ms()
    options = AdviceOptions(
        backend=_read_backend(latency_ms, bandwidth, is_object_store=object_store),
        prices=_find_prices(price_file, prices),
        limits=_read_limits(max_loss, max_read_ms, max_disk),
        memory_bytes=int((memory or 0) * _GIB),
        is_object_store=object_store,
        most=top,
    )
    if trace is not None:
        observed = read_trace(trace)
    else:
        files = dict(parse_snapshot_name(text, now_ms) for text in offsets)
        observed = observe_snapshots(read_snapshots(files))
    report = advise_store(store, locate_tier(tier), observed, options)
    if out.format is not OutputFormat.TABLE:
        out.record(report)
        return
    fragment, attributes = report.pop("broker_conf"), report.pop("topic_attributes")
    out.record(report, TABLES)
    out.line("")
    out.line("# broker.conf")
    out.line(str(fragment).rstrip() or "# as it is")
    if isinstance(attributes, dict) and attributes:
        out.line("")
        out.line("# topic attributes")
        for topic, attribute in attributes.items():
            out.line(f"{topic} {attribute}")
    out.flush()


def _find_prices(file: Path | None, given: dict[str, float]) -> Prices | None:
    from tieredstore.contracts.usage import Prices

    if file is None and not given:
        return None
    named = read_prices(file, BROKER_PRICES) if file is not None else {}
    return Prices(**{**named, **given})


def _read_backend(
    latency_ms: str | None, bandwidth: float | None, *, is_object_store: bool
) -> Backend | None:
    from tieredstore.jobs.advising.timeline import Backend

    if latency_ms is None and bandwidth is None and not is_object_store:
        return None
    backend = Backend()
    if latency_ms is not None:
        try:
            times = [float(part) for part in latency_ms.split(",")]
            if not 1 <= len(times) <= 2 or not 0 <= times[0] <= times[-1] < float("inf"):
                raise ValueError
        except ValueError:
            raise click.UsageError(
                f"--latency-ms {latency_ms!r}: expected P50 or P50,P99, such as 30,120"
            ) from None
        backend = Backend(times[0], times[-1])
    if bandwidth is not None:
        backend.bytes_per_s = bandwidth * _MIB
    return backend


def _read_limits(max_loss: str | None, max_read_ms: float | None, max_disk: float | None) -> Limits:
    from tieredstore.jobs.advising.weighing import Limits
    from tieredstore.scan.times import parse_span

    return Limits(
        loss_ms=None if max_loss is None else float(parse_span(max_loss, "--max-loss")),
        read_p99_ms=max_read_ms,
        disk_bytes=None if max_disk is None else max_disk * _GIB,
    )
