"""Simulate the cost of a tier on an object store. Write the tables and the plot of docs/cost.md.

    python -m benchmarks.cost [--days 30] [--groups]

Takes some minutes for a month. With --groups only the section about group objects is written. Needs
matplotlib.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from benchmarks.cost.simulation import (
    ADAPTIVE,
    DAY_MS,
    FIXED,
    GROUPED,
    HOUR_MS,
    PLAIN,
    Load,
    Outcome,
    Scheme,
    simulate,
    simulate_reading,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "cost.md"
PLOT = DOCS / "cost.svg"
SAMPLE_QUEUES = 2
GROUPED_SAMPLE_QUEUES = 20
"""Number of queues in a sample with group objects. It is large enough for several objects."""
GROUPED_DAYS = 3
QUEUES = 10_000
RECORD_BYTES = 1024
INTERVALS_S = (30, 60, 120, 300, 600, 1200, 3600)
FAST = ((64, 0.25), (256, 0.5), (1024, 1.25), (4096, 1.25))
"""Fast queues: (rate in KiB/s, amount that the simulation uploads in GiB)."""


def run(scheme: Scheme, load: Load) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return simulate(scheme, load, Path(folder))


def slow(duration_ms: int) -> Load:
    return Load(SAMPLE_QUEUES, QUEUES, RECORD_BYTES, 5_000, duration_ms)


def limited(seconds: int) -> Scheme:
    """Return an upload schedule with the given maximum wait of a message."""
    return Scheme(f"{seconds} s", keys={"adaptive_commit_max_interval_ms": seconds * 1000})


def steady(kib: int, gib: float) -> Load:
    """Return a load of one queue that receives `kib` KiB a second, until `gib` GiB are uploaded."""
    return Load(1, 1, RECORD_BYTES, 1000 / kib, int(gib * (1 << 20) / kib * 1000))


def month(outcomes: Sequence[Outcome]) -> str:
    operations = list(dict.fromkeys(name for one in outcomes for name in one.by_operation()))
    table = [
        ["", *(one.scheme for one in outcomes)],
        ["---", *("---:" for _ in outcomes)],
        *(
            [name, *(f"{one.by_operation().get(name, 0):,}" for one in outcomes)]
            for name in operations
        ),
        ["**requests**", *(f"**{one.request_count:,}**" for one in outcomes)],
        [
            "times ours",
            *(f"{one.request_count / outcomes[-1].request_count:.1f}" for one in outcomes),
        ],
        ["US dollars", *(f"{one.cost_usd:,.2f}" for one in outcomes)],
        ["objects at the end", *(f"{one.keys_left:,}" for one in outcomes)],
        ["GiB at the end", *(f"{one.bytes_left / (1 << 30):,.0f}" for one in outcomes)],
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)


def curve(outcomes: Iterable[tuple[int, Outcome]]) -> str:
    rows = ["| longest interval | requests a month | US dollars a month |", "|---:|---:|---:|"]
    rows += [f"| {s} s | {one.request_count:,} | {one.cost_usd:,.2f} |" for s, one in outcomes]
    return "\n".join(rows)


def fast(outcomes: Iterable[tuple[int, Outcome]]) -> str:
    rows = [
        "| rate of the queue | MiB a commit log PUT | requests a GiB | US dollars a GiB |",
        "|---:|---:|---:|---:|",
    ]
    for kib, one in outcomes:
        gib = one.uploaded_bytes / (1 << 30)
        puts = one.requests["PutObject", "COMMIT_LOG"]
        rows.append(
            f"| {kib:,} KiB/s | {1024 * gib / puts:.1f} | {one.request_count / gib:,.0f} | "
            f"{one.cost_per_gib_usd:.4f} |"
        )
    return "\n".join(rows)


def plot(outcomes: Sequence[Outcome], points: Sequence[tuple[int, Outcome]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "tieredstore"
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    kinds = {
        "write": ("Put", "Create", "Complete", "Upload"),
        "read": ("Get", "Head"),
        "list": ("List",),
        "delete": ("Delete", "Abort"),
    }
    floor = [0.0] * len(outcomes)
    for kind, prefixes in kinds.items():
        counts = [
            sum(n for name, n in one.by_operation().items() if name.startswith(prefixes)) / 1e6
            for one in outcomes
        ]
        left.bar([one.scheme for one in outcomes], counts, bottom=floor, label=kind)
        floor = [low + count for low, count in zip(floor, counts, strict=True)]
    for index, top in enumerate(floor):
        left.text(index, top, f"{top:,.0f}", ha="center", va="bottom")
    left.set_ylabel("million requests a month")
    left.tick_params(axis="x", labelrotation=12)
    left.legend()
    right.plot(
        [seconds for seconds, _ in points],
        [one.cost_usd for _, one in points],
        marker="o",
    )
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xticks(list(INTERVALS_S), [str(seconds) for seconds in INTERVALS_S])
    right.minorticks_off()
    right.set_xlabel("longest commit interval, s")
    right.set_ylabel("US dollars a month")
    right.grid(visible=True, which="both", alpha=0.3)
    figure.suptitle(f"{QUEUES:,} queues, a message of 1 KiB every 5 s each")
    figure.savefig(path, metadata={"Date": None})


def replace_part(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise SystemExit(f"{PAGE}: no part {name}")
    return f"{head}{begin}\n{content}\n\n{end}{tail}"


def groups(grouped: Outcome, day_requests: int, page: str) -> str:
    """Return the page's section about group objects. `page`: text of the page, which already has
    the number of requests without group objects."""
    found = re.search(r"\| \*\*requests\*\* \| \*\*([0-9,]+)\*\*", page)
    if found is None:
        raise SystemExit(f"{PAGE}: no requests of the plain scheme")
    plain = int(found[1].replace(",", ""))
    rows = ["|  | " + grouped.scheme + " |", "| --- | ---: |"]
    rows += [f"| {name} | {count:,} |" for name, count in grouped.by_operation().items()]
    rows += [
        f"| **requests** | **{grouped.request_count:,}** |",
        f"| of those of the plain scheme | 1/{plain // grouped.request_count:,} |",
        f"| US dollars | {grouped.cost_usd:,.2f} |",
        f"| objects at the end | {grouped.keys_left:,} |",
        f"| GiB at the end | {grouped.bytes_left / (1 << 30):,.0f} |",
        f"| a queue's last day, for a reader without a state | {day_requests} requests |",
    ]
    return "\n".join(rows)


def simulate_groups(duration_ms: int) -> tuple[Outcome, int]:
    """Simulate group objects. Return their costs, and the number of requests for reading a day of
    one queue."""
    load = Load(
        GROUPED_SAMPLE_QUEUES,
        QUEUES,
        RECORD_BYTES,
        5_000,
        min(duration_ms, GROUPED_DAYS * DAY_MS),
    )
    grouped = run(GROUPED, load).a_month()
    # Before the first is moved to the folder of its queue, and before the next sorting.
    unmoved = replace(load, duration_ms=22 * HOUR_MS - 120_000)
    with tempfile.TemporaryDirectory() as folder:
        return grouped, simulate_reading(GROUPED, unmoved, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__)
    parser.add_argument("--days", type=float, default=30, help="simulated days, scaled to 30")
    parser.add_argument("--groups", action="store_true", help="the part about group objects alone")
    options = parser.parse_args()
    duration_ms = int(options.days * DAY_MS)
    if options.groups:
        found = simulate_groups(duration_ms)
        text = PAGE.read_text()  # The page may have been edited in these minutes.
        PAGE.write_text(replace_part(text, "groups", groups(*found, text)))
        return
    with ProcessPoolExecutor() as pool:  # The longest ones first.
        months = [pool.submit(run, one, slow(duration_ms)) for one in (PLAIN, FIXED, ADAPTIVE)]
        intervals = [
            pool.submit(run, limited(seconds), slow(min(duration_ms, 2 * DAY_MS)))
            for seconds in INTERVALS_S
        ]
        fast_ones = [pool.submit(run, ADAPTIVE, steady(kib, gib)) for kib, gib in FAST]
        outcomes = [task.result().a_month() for task in months]
        points = [
            (seconds, task.result().a_month())
            for seconds, task in zip(INTERVALS_S, intervals, strict=True)
        ]
        rates = [(kib, task.result()) for (kib, _), task in zip(FAST, fast_ones, strict=True)]
    grouped = simulate_groups(duration_ms)
    text = PAGE.read_text()
    text = replace_part(text, "month", month(outcomes))
    text = replace_part(text, "curve", curve(points))
    text = replace_part(text, "fast", fast(rates))
    text = replace_part(text, "groups", groups(*grouped, text))
    PAGE.write_text(text)
    plot(outcomes, points, PLOT)


if __name__ == "__main__":
    main()
