"""Recovery as a store that is opened does it: a plan, consent where there is a loss, the repair."""

from __future__ import annotations

import logging
from pathlib import Path

from tieredstore.config import StoreConfig
from tieredstore.errors import Corrupt
from tieredstore.local.queues.consume_queue_store import CONSUME_QUEUE_DIRECTORY
from tieredstore.local.recovery.plan import RecoveryPlan
from tieredstore.local.recovery.planning import plan_recovery
from tieredstore.local.recovery.repair import repair

_log = logging.getLogger(__name__)


def recover(
    root: Path, config: StoreConfig, *, accept_loss: bool = False, rebuild: bool = False
) -> RecoveryPlan:
    """Bring the files of a store to where the dispatch can go on; the caller holds its lock.

    Returns the plan that was carried out. accept_loss: whether valid messages behind a damaged one
    may be cut off. rebuild: as `full` of `plan_recovery`. Raises Corrupt for a loss without
    consent, and what `plan_recovery` and `repair` raise.
    """
    plan = plan_recovery(root, config, full=rebuild)
    if plan.needs_consent and not accept_loss:
        raise Corrupt(
            f"{plan.needs_consent}; nothing was done. `tieredstore store check {root}` shows the "
            f"plan, `tieredstore store recover {root} --yes` does it",
            path=str(root),
            offset=plan.log_end,
        )
    for warning in plan.warnings:
        _log.warning("%s: recovery: %s", root, warning)
    _log.warning("%s: recovery: %s", root, describe_plan(plan))
    repair(plan)
    return plan


def needs_queue_repair(damage: Corrupt, root: Path) -> bool:
    """Tell whether damage is in the consume queues, which can be built from the log."""
    path = Path(damage.path or "/")
    return (root / CONSUME_QUEUE_DIRECTORY) in path.parents


def describe_plan(plan: RecoveryPlan) -> str:
    """Return what a plan does, in one line."""
    end = f"the log ends at {plan.log_end} ({plan.end_cause.value})"
    parts = [f"{end}, {plan.records} messages checked from {plan.check_from} on"]
    if plan.cut_bytes:
        parts.append(f"{plan.cut_bytes} bytes behind it are wiped")
    if plan.queue_cuts:
        parts.append(f"{len(plan.queue_cuts)} queues are cut")
    if plan.index_cuts or plan.delete_index_files:
        count = len(plan.index_cuts) + len(plan.delete_index_files)
        parts.append(f"{count} index files are made anew")
    parts.append(f"queues and index are built from {plan.dispatch_from} on")
    return "; ".join(parts)
