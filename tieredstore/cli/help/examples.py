"""Examples that `--help` and the manual page show after the options of a verb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "advise": (
        "advise /data/store --tier /data/tier --offsets monday.json --offsets tuesday.json",
        "advise /data/store --tier s3://bucket/prefix --offsets a.json --offsets b.json --top 9",
        "advise /data/store --tier s3://bucket/prefix --trace /data/store",
    ),
    "backfill": ("backfill --from table --tier /data/tier --state state --config broker.conf",),
    "broker": (
        "broker -c broker.conf",
        "broker --read-only --tier /data/tier --state offsets",
    ),
    "cat": (
        "cat --tier /data/tier --topic orders --since -1h",
        "cat --tier /data/tier --topic 'pay_*' --tail 10 --follow",
        "cat --tier /data/tier --topic orders --where \"body CONTAINS 'paid'\"",
        "cat --tier /data/tier --topic orders --format '{queue_offset} {body}'",
        "cat --store /data/store --topic orders --output ndjson",
    ),
    "compact export": ("compact export /data/table",),
    "compact index": ("compact index --tier /data/tier --state state --config broker.conf",),
    "completion": ('completion bash   # eval "$(…)" in ~/.bashrc',),
    "config backup": ("config backup /data/store --to backup.json",),
    "config check": ("config check broker.conf",),
    "config restore": (
        "config restore /data/store --from backup.json",
        "config restore /data/store --from backup.json --yes",
    ),
    "config show": (
        "config show --config broker.conf",
        "config show fileReservedTime --config broker.conf --all",
    ),
    "copy": ("copy --from /data/tier --to s3://bucket/prefix --to-state state --dry-run",),
    "dev": ("dev", "dev --port 0 --folder dev"),
    "doctor": ("doctor --tier 's3://bucket/prefix?region=eu-west-1'",),
    "export": (
        "export --tier /data/tier --format parquet --to /data/table",
        "export --tier /data/tier --topics 'pay_*' --format delta --to table --follow",
    ),
    "health": ("health --tier /data/tier --state state --max-age 15m",),
    "jobs forget": (
        "jobs forget export-0123456789abcdef --yes",
        "jobs forget --older-than 7d --yes",
    ),
    "jobs list": ("jobs list",),
    "ls": ("ls --tier /data/tier", "ls --tier /data/tier --topic orders --output json"),
    "man": ("man | man -l -",),
    "offload": (
        "offload /data/store --tier /data/tier --state state --config broker.conf",
        "offload /data/store --tier s3://bucket/prefix --state state --follow --log-format json",
    ),
    "profile delete": ("profile delete prod",),
    "profile list": ("profile list",),
    "profile set": ("profile set prod --tier /data/tier --state /data/state",),
    "profile show": ("profile show prod",),
    "query": (
        "query --tier /data/tier --topic orders --key order-17",
        "query --tier /data/tier --msg-id AC1100010000000000000000000001",
    ),
    "rebuild index": ("rebuild index --tier /data/tier --state state --force",),
    "rebuild metadata": ("rebuild metadata --tier /data/tier --state state --dry-run",),
    "report": ("report --tier /data/tier --to report",),
    "restore": ("restore --tier /data/tier --store /data/store --config broker.conf",),
    "sample": ("sample shop", "sample shop --days 30 --orders-per-day 200 --seed 7"),
    "send": (
        "send orders 'first' 'second' --tag paid --key order-17",
        "send orders --at 10.0.0.7:10911 < lines.txt",
    ),
    "sql": (
        "sql --tier /data/tier .tables",
        'sql --tier /data/tier "select tags, count(*) from orders group by tags"',
    ),
    "stat": ("stat --tier /data/tier", "stat --tier /data/tier --topic orders"),
    "store check": ("store check /data/store",),
    "store recover": ("store recover /data/store", "store recover /data/store --yes"),
    "store stat": ("store stat /data/store",),
    "tail": ("tail orders", "tail orders --from-start --limit 10 --output ndjson"),
    "tier adopt": ("tier adopt --tier /data/tier --state /data/store --config broker.conf",),
    "tier delete": ("tier delete orders --tier /data/tier --state state --yes",),
    "tier expire": (
        "tier expire orders --before -30d --tier /data/tier --state state",
        "tier expire --all-topics --before -30d --tier /data/tier --state state --yes",
    ),
    "tier reset": ("tier reset orders --tier /data/tier --state state",),
    "tier skip": ("tier skip orders --queue 0 --to 9000 --tier /data/tier --state state",),
    "topic create": ("topic create orders --queues 8",),
    "topic delete": ("topic delete orders --yes",),
    "topic list": ("topic list",),
    "verify": (
        "verify --tier /data/tier --state state",
        "verify --tier /data/tier --topic orders --output ndjson",
    ),
}
"""Examples of each verb: command lines without `tieredstore`."""
