"""Reference page of the metrics, generated from their table."""

from __future__ import annotations

from tieredstore.broker.operations.metric_table import METRICS

_HEAD = """# Metrics

This page is generated from `tieredstore/broker/operations/metric_table.py`. A broker and
`offload --follow` serve these metrics at `/metrics`. Names and labels without `_x_` are those of
Apache RocketMQ. Each series also has the labels `cluster`, `node_type` and `node_id`.

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def page() -> str:
    """Return the page, with one row per metric."""
    rows = (
        f"| `{name}` | {info.kind} | {', '.join(f'`{one}`' for one in info.labels)} "
        f"| {info.meaning} |\n"
        for name, info in METRICS.items()
    )
    return _HEAD + "".join(rows)
