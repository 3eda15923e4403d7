"""`tieredstore doctor`: what the place of a tier really does, and whether it is safe to write."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.rows import Output, OutputFormat
from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.contracts.probing import ProbeResult
    from tieredstore.contracts.segment import SegmentProvider

COLUMNS = ("probe", "verdict", "found")


@click.command("doctor")
@tier_options(
    has_defaults=True,
    tier="Where a tier is, or is to be.",
    state=None,
    config="A broker.conf: credentials and settings of the backend.",
    cluster=None,
    broker=None,
)
@click.option(
    "--racers",
    metavar="N",
    type=click.IntRange(2, 64),
    default=16,
    show_default=True,
    help="Writers that race to make one object.",
)
@click.option(
    "--rounds",
    metavar="N",
    type=click.IntRange(1, 100),
    default=5,
    show_default=True,
    help="Races.",
)
@click.option("--no-throughput", is_flag=True, help="Leave the requests of 8 MiB out.")
@output_option
def command(
    tier: TierOptions,
    racers: int,
    rounds: int,
    no_throughput: bool,
    out: Output,
) -> int:
    """Try everything that the store relies on, in a folder of its own that is removed again.

    Never makes a bucket. Exit code 7 when it is not safe to write there.
    """
    from tieredstore import registry
    from tieredstore.cli.composition import check_target
    from tieredstore.contracts.probing import Probed, ProbeOptions, Verdict
    from tieredstore.contracts.wrapping import find_layer
    from tieredstore.scan.location import load_config, place_tier
    from tieredstore.tier_url import as_url

    check_target(tier)
    config = place_tier(
        load_config(tier.config, properties=tier.properties).config, as_url(tier.tier), state=None
    )
    provider: SegmentProvider = registry.segment_provider(config)
    url = provider.url
    with closing(provider):
        probed = find_layer(provider, Probed)
        if probed is None:
            raise Invalid(f"{url}: this provider has no probes")
        options = ProbeOptions(racers, rounds)
        if no_throughput:
            options = ProbeOptions(racers, rounds, large_bytes=0)
        results = list(probed.probes(options))
    unsafe = [result for result in results if result.verdict is Verdict.UNSAFE]
    _print(out, url, results, is_safe=not unsafe)
    return int(ExitCode.UNSAFE if unsafe else ExitCode.OK)


def _print(out: Output, url: str, results: list[ProbeResult], *, is_safe: bool) -> None:
    rows = [
        {
            "probe": result.name,
            "verdict": result.verdict.value,
            "found": result.found,
            "meaning": result.meaning,
        }
        for result in results
    ]
    match out.format:
        case OutputFormat.JSON:
            out.record({"tier": url, "safe": is_safe, "probes": rows})
        case OutputFormat.NDJSON:
            out.rows(COLUMNS, rows)
        case OutputFormat.TABLE:
            out.rows(COLUMNS, rows)
            out.line("")
            for result in results:
                if result.meaning:
                    out.line(f"{result.verdict.value}: {result.name}: {result.meaning}")
            safe = "it is safe to write there" if is_safe else "it is NOT safe to write there"
            out.line(f"{url}: {safe}")
            out.flush()
