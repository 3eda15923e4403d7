"""Whether an export that was interrupted can go on: its target has to be as it left it.

Who deletes a target, or puts an older one in its place, leaves a journal whose files are nowhere. A
Delta log would take their names all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import compress

from tieredstore.jobs.exporting.dedup.duplicates import DropSection
from tieredstore.jobs.exporting.dedup.keys import KeysOutcome
from tieredstore.jobs.exporting.plan import Plan
from tieredstore.jobs.exporting.state import DataFile, Target
from tieredstore.jobs.exporting.work import WriteOutcome
from tieredstore.jobs.journal import Journal

_THREADS = 8


def find_lost(journal: Journal, plan: Plan, target: Target) -> str | None:
    """Return what the target lacks of what an interrupted export left there, in words; None where
    the export can go on, was committed, or is behind another one's commit. Raises Unavailable."""
    state = target.load()
    if state.export == plan.export or state.sequence > plan.base:
        return None
    if state.sequence < plan.base:
        return (
            f"the interrupted run followed commit {plan.base} of the target, whose last one is now "
            f"{state.sequence}"
        )
    if "commit" in journal:
        return f"commit {plan.base + 1} of the target, which the interrupted run made, is gone"
    names = sorted(set(_staged_names(journal)))
    if not names:
        return None
    with (
        closing(target.folder(plan.base, plan.export).connect()) as files,
        ThreadPoolExecutor(_THREADS) as pool,
    ):
        missing = list(compress(names, (not found for found in pool.map(files.exists, names))))
    if not missing:
        return None
    return f"{len(missing)} of {len(names)} files of the interrupted run are gone ({missing[0]})"


def _staged_names(journal: Journal) -> Iterator[str]:
    """Names of the files that the steps left in the export's folder. All stay until the commit."""
    for step in journal:
        match step.partition(":")[0]:
            case "write":
                written: WriteOutcome = journal.outcome(step, WriteOutcome)
                yield from (file.name for file in written.files)
            case "merge":
                yield journal.outcome(step, DataFile).name
            case "keys" | "known-keys":
                name = journal.outcome(step, KeysOutcome).name
                if name:
                    yield name
            case "duplicates":
                sections: list[DropSection] = journal.outcome(step, list[DropSection])
                yield from (section.name for section in sections)
