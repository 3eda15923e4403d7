"""Make small mutations in the package, one at a time, and check that a test fails.

    python -m scripts.mutation [--count 72] [--seed 1] [--area NAME …] [--minutes 60]

Draws the same number of mutations (`sites.py`) from each area of the package (`areas.py`). Each
mutation is applied to a copy of the work tree, and the area's tests run there. Mutations that no
test could detect are listed in `without_effect.toml` with the reason, and are not drawn. Reports
the survivors, and fails if less than 90 % were detected.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from scripts.mutation.areas import AREAS, Area
from scripts.mutation.sites import Mutant, find_mutants, iterate_modules
from scripts.mutation.trial import Copy, Tried, Verdict

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_EFFECT = Path(__file__).with_name("without_effect.toml")
WANTED = 0.9
TIMES_LONGER = 4
"""If the tests of a mutant take this many times longer than normally, the mutant counts as killed.
"""

Exclusions = set[tuple[str, str, str]]


def load_exclusions(page: Path) -> Exclusions:
    """Return (module, line, replacement) of the mutations without effect."""
    rows = tomllib.loads(page.read_text())["mutant"]
    for row in rows:
        if not row["reason"]:
            raise SystemExit(f"{page.name}: {row['line']}: no reason")
    return {(row["module"], row["line"], row["becomes"]) for row in rows}


def draw(
    area: Area, count: int, chance: random.Random, exclusions: Exclusions, root: Path
) -> list[Mutant]:
    """Return a random choice of the area's mutations. Each kind is equally likely, and each
    position within a kind."""
    found: dict[str, list[Mutant]] = {}
    for path in iterate_modules(root, area.modules):
        for mutant in find_mutants(path, (root / path).read_bytes()):
            found.setdefault(mutant.kind, []).append(mutant)
    drawn: list[Mutant] = []
    while len(drawn) < count and found:
        kind = chance.choice(sorted(found))
        mutant = found[kind].pop(chance.randrange(len(found[kind])))
        if not found[kind]:
            del found[kind]
        source = (root / mutant.path).read_bytes()
        name = (str(mutant.path), mutant.line, mutant.changed_line(source))
        if name not in exclusions and mutant.is_other_program(source):
            drawn.append(mutant)
    return drawn


def take_turns(areas: Sequence[Area], count: int, seed: int) -> list[Area]:
    """Return `count` of the areas. Consecutive seeds cover all areas."""
    first = seed * count
    return [areas[number % len(areas)] for number in range(first, first + min(count, len(areas)))]


def try_area(
    area: Area, mutants: Sequence[Mutant], copies: SimpleQueue[Copy], workers: int, seed: int
) -> Iterator[Tried]:
    """Test mutants of an area in parallel, each in a separate copy of the tree."""
    copy = copies.get()
    begin = time.monotonic()
    if not copy.run(area.tests, seed, None):
        raise SystemExit(f"mutation: the tests of {area.name} fail without a mistake")
    timeout_s = TIMES_LONGER * (time.monotonic() - begin)
    copies.put(copy)

    def try_one(mutant: Mutant) -> Tried:
        copy = copies.get()
        try:
            return copy.try_mutant(mutant, area.tests_of(mutant.path, ROOT), seed, timeout_s)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(try_one, mutants)


def parse_arguments() -> argparse.Namespace:
    names = [area.name for area in AREAS]
    parser = argparse.ArgumentParser(prog="python -m scripts.mutation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=72, help="of all areas together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--area", action="append", choices=names, help="only this; repeatable")
    parser.add_argument("--areas", type=int, help="only so many, others with the next seed")
    parser.add_argument("--minutes", type=float, default=120, help="begin no area after that")
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 4))
    parser.add_argument("--list", action="store_true", help="show the sample, and stop")
    return parser.parse_args()


def main() -> int:
    chosen = parse_arguments()
    areas = [area for area in AREAS if not chosen.area or area.name in chosen.area]
    if chosen.areas:
        areas = take_turns(areas, chosen.areas, chosen.seed)
    exclusions = load_exclusions(WITHOUT_EFFECT)
    drawn = {
        area: draw(
            area,
            chosen.count * (number + 1) // len(areas) - chosen.count * number // len(areas),
            random.Random(f"{chosen.seed} {area.name}"),
            exclusions,
            ROOT,
        )
        for number, area in enumerate(areas)
    }
    if chosen.list:
        for mutants in drawn.values():
            for mutant in mutants:
                print(mutant.difference((ROOT / mutant.path).read_bytes()))
        return 0
    os.nice(10)
    end = time.monotonic() + 60 * chosen.minutes
    tried: list[Tried] = []
    copies: SimpleQueue[Copy] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for number in range(chosen.workers):
            copies.put(Copy(ROOT, Path(folder, str(number))))
        for area, mutants in drawn.items():
            if time.monotonic() > end:
                print(f"{area.name}: not begun after {chosen.minutes} minutes", flush=True)
                continue
            for one in try_area(area, mutants, copies, chosen.workers, chosen.seed):
                tried.append(one)
                print(f"{area.name}: {one.describe()}", flush=True)
                if one.verdict is Verdict.SURVIVED:
                    print(one.difference, flush=True)
    killed = sum(one.verdict is not Verdict.SURVIVED for one in tried)
    score = killed / max(len(tried), 1)
    print(f"seed {chosen.seed}: {killed} of {len(tried)} killed: {score:.0%}, wanted {WANTED:.0%}")
    return int(score < WANTED)


if __name__ == "__main__":
    sys.exit(main())
