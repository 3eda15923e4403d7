"""The requests of a run, as a table."""

from __future__ import annotations

USAGE_TABLE = {
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
