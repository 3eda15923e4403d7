"""Lists of a report that a table shows as tables of their own, with the columns of each."""

from __future__ import annotations

Tables = dict[str, tuple[str, ...]]
STAGES_TABLE: Tables = {"stages": ("stage", "tasks", "resumed", "size_bytes", "seconds")}
USAGE_TABLE: Tables = {
    "requests_by_operation": (
        "operation",
        "file_type",
        "requests",
        "failed",
        "sent_bytes",
        "received_bytes",
        "cost_usd",
    )
}
