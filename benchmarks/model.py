"""What a row of the benchmark is, and what its pairs say."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Pass = dict[str, Any]
"""One measured pass: `count` things in `seconds`, and further `seconds_…`, `bytes`, `p50_us`."""

AS_IT_IS = frozenset({"s", "ms", "µs", "MiB"})
"""Units of values that are not rates; the smaller the better."""

BODY_BYTES = 1024
QUEUES = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work one pass is."""

    messages: int
    put_messages: int
    reads: int
    lookups: int
    index_keys: int
    compaction_items: int
    compaction_slots: int
    queues_to_open: int


FULL = Sizes(200_000, 200_000, 2000, 2000, 1_000_000, 20_000_000, 5_000_000, 1000)
QUICK = Sizes(40_000, 40_000, 500, 300, 200_000, 500_000, 125_000, 100)


@dataclass(frozen=True, slots=True)
class Workbench:
    """Where a pass of ours works: `folder` is on the disk that is measured."""

    folder: Path
    sizes: Sizes


OursFactory = Callable[[Workbench], AbstractContextManager[Callable[[], Pass]]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a row.

    key: which clock of the pass; unit: what is counted a second, or `s` for the time itself.
    floor: least rate wanted of ours; ceiling: most seconds wanted; ratio: least ours / Java.
    """

    name: str
    unit: str
    key: str = "seconds"
    floor: float | None = None
    ceiling: float | None = None
    ratio: float | None = None
    per_byte: bool = False

    def value(self, measured: Pass) -> float:
        seconds: float = measured[self.key]
        if self.unit in AS_IT_IS:
            return seconds
        return float(measured["bytes"] if self.per_byte else measured["count"]) / seconds


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of work: ours, and the other side's where it has a peer.

    fresh_mib: memory that the pass takes for pages of new files, MiB: written once and freed right
    before each pass of either side, since a virtual machine may have to ask its host for it first.
    peer: who that is. Java's passes are asked for with `java`; any other peer's are the `beside`
    of our passes, measured in the same process right behind them.
    """

    name: str
    what: str
    face: str
    durability: str
    ours: OursFactory
    figures: tuple[Figure, ...]
    java: Callable[[Sizes], dict[str, Any]] | None = None
    no_peer: str = ""
    peer: str = "Java"
    pull: str = "–"
    fresh_mib: int = 0
    warm_up: int = 2
    java_warm_up: int = 4


@dataclass(slots=True)
class Measured:
    """The passes of one row; `java`: those of its peer, whoever that is."""

    row: Row
    ours: list[Pass] = field(default_factory=list)
    java: list[Pass] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One figure over all pairs: medians, and the ratio (above 1: ours is better) with its
    spread. verdicts: each target with whether it is met."""

    row: Row
    figure: Figure
    ours: float
    java: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    verdicts: tuple[tuple[str, bool], ...]


def outcome(measured: Measured, figure: Figure) -> Outcome:
    ours = [figure.value(one) for one in measured.ours]
    java = [figure.value(one) for one in measured.java if figure.key in one]
    median = statistics.median(ours)
    smaller_is_better = figure.unit in AS_IT_IS
    pairs = list(zip(ours, java, strict=False))
    ratios = [(j / o if smaller_is_better else o / j) for o, j in pairs]
    verdicts: list[tuple[str, bool]] = []
    if figure.floor is not None:
        verdicts.append((f"≥ {short(figure.floor)} {figure.unit}", median >= figure.floor))
    if figure.ceiling is not None:
        verdicts.append((f"≤ {figure.ceiling:g} {figure.unit}", median <= figure.ceiling))
    if figure.ratio is not None and ratios:
        met = statistics.median(ratios) >= figure.ratio
        verdicts.append((f"≥ {figure.ratio:g}× {measured.row.peer}", met))
    return Outcome(
        measured.row,
        figure,
        median,
        statistics.median(java) if java else None,
        statistics.median(ratios) if ratios else None,
        min(ratios) if ratios else None,
        max(ratios) if ratios else None,
        tuple(verdicts),
    )


def short(number: float) -> str:
    """1234567 -> 1.23 M"""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= limit:
            return f"{number / limit:.3g}{suffix}"
    return f"{number:.3g}"
