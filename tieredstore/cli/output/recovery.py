"""A recovery plan as `store check` and `store recover` print it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.cli.output.cells import plain_text
from tieredstore.cli.output.rows import Output, OutputFormat
from tieredstore.cli.output.tables import Tables

if TYPE_CHECKING:
    from tieredstore.local.recovery.plan import RecoveryPlan

_TABLES: Tables = {
    "queue_cuts": ("topic", "queue_id", "from_offset", "to_offset"),
    "queues_to_build": ("topic", "queue_id", "from_offset", "until_offset"),
    "index_cuts": ("path", "items"),
}
_HIDDEN = frozenset({"warnings", "needs_consent", "wipe", "records_behind"})


def write_plan(out: Output, plan: RecoveryPlan) -> None:
    """Write a plan: all its fields as JSON, or what counts as a table."""
    fields = plan.fields()
    if out.format is not OutputFormat.TABLE:
        out.record(fields)
        return
    for name in ("checkpoint_before", "checkpoint_after"):
        fields[name] = " ".join(
            f"{key}={plain_text(key, value)}" for key, value in fields[name].items() if value
        )
    for name in ("delete_log_files", "delete_index_files"):
        fields[name] = " ".join(fields[name])
    out.record({name: value for name, value in fields.items() if name not in _HIDDEN}, _TABLES)
    for warning in plan.warnings:
        out.line(f"warning: {warning}")
    if plan.needs_consent:
        out.line(f"loss: {plan.needs_consent}")
    out.flush()
