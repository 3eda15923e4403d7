"""Rows of the benchmark table, and results of measured pairs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Pass = dict[str, Any]
"""Result of one pass: `count` items in `seconds`. Optional keys: times of parts of the pass
(`seconds_…`), `bytes`, and the median time of an item (`p50_us`)."""

AS_IT_IS = frozenset({"s", "ms", "µs", "MiB"})
"""Units of figures that are reported as they are, and not converted to a rate. For these figures a
smaller value is better."""

BODY_BYTES = 1024
QUEUES = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of work in one pass."""

    messages: int
    put_messages: int
    reads: int
    lookups: int
    index_keys: int
    compaction_items: int
    compaction_slots: int
    queues_to_open: int


FULL = Sizes(200_000, 200_000, 2000, 2000, 1_000_000, 20_000_000, 5_000_000, 1000)
QUICK = Sizes(10_000, 10_000, 200, 100, 50_000, 100_000, 25_000, 50)


@dataclass(frozen=True, slots=True)
class Workbench:
    """Environment of the passes of our store. `folder` is on the measured disk."""

    folder: Path
    sizes: Sizes


OursFactory = Callable[[Workbench], AbstractContextManager[Callable[[], Pass]]]


@dataclass(frozen=True, slots=True)
class Figure:
    """Figure of a row. `key`: key of its time in a `Pass`. `unit`: unit of the rate, or `s` for the
    time itself. Targets of our store: `floor`, a minimum rate. `ceiling`, a maximum time in
    seconds. `ratio`, a minimum ratio to Java's rate."""

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
    """Row of the table: a kind of work that our store and its peer, if any, do. `fresh_mib`: memory
    for pages of new files, MiB. It is written and freed just before each pass, so that a virtual
    machine need not request it from its host. `peer`: name of the program to compare with. `java`:
    request for a pass of Java. A pass of any other peer runs in our process just after ours, which
    returns its result as `beside`."""

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
    """The passes of one row. `java`: passes of the peer, which is Java or another program."""

    row: Row
    ours: list[Pass] = field(default_factory=list)
    java: list[Pass] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One figure over all pairs: medians, and the ratio with its spread. A ratio above 1 means that
    our store is better. `verdicts`: each target and its result."""

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
    """Return a number in short form: 1234567 -> 1.23 M."""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= limit:
            return f"{number / limit:.3g}{suffix}"
    return f"{number:.3g}"
