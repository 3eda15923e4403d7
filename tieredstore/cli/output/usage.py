"""The requests of a run, for the summaries of verbs whose backend is paid by the request."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.contracts.usage import Usage

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


def usage_fields(usage: Usage | None) -> dict[str, object]:
    """Fields of a summary (`docs/cli.md`); null and empty without a meter."""
    return {
        "requests": None if usage is None else usage.requests,
        "cost_usd": None if usage is None else round(usage.cost_usd, 9),
        "requests_by_operation": [] if usage is None else [asdict(row) for row in usage.rows],
    }
