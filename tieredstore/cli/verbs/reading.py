"""Verbs that read a tier: its queues, its totals, messages by key, SQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.logs.choice import say
from tieredstore.cli.messages.rows import MESSAGE_COLUMNS
from tieredstore.cli.options import messages
from tieredstore.cli.options.collecting import number, value
from tieredstore.cli.options.output import (
    body_option,
    message_output_options,
    output_option,
    rows_output_options,
)
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.rows import USAGE_TABLE, Output
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.contracts.usage import read_usage, usage_fields
from tieredstore.scan.findings import Finding, Severity
from tieredstore.scan.times import parse_time, require_order

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tieredstore.cli.output.messages import MessageOutput
    from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, TierCatalogue
    from tieredstore.scan.keys.search import Hit
    from tieredstore.scan.keys.unindexed import Unindexed


@click.command("ls")
@tier_options(has_defaults=True)
@messages.topic_option(help="Only this topic.")
@output_option
def ls(tier: TierOptions, topic: str | None, out: Output) -> None:
    """List the queues of a tier: offsets, messages, bytes, store times."""
    from tieredstore.cli.composition import open_tier
    from tieredstore.cli.output.queues import QUEUE_COLUMNS, queue_rows

    with open_tier(tier) as opened:
        queues = opened.catalogue().select(topic, broker=opened.broker)
        out.rows(QUEUE_COLUMNS, queue_rows(opened.provider, queues), total=len(queues))


SEGMENT_COLUMNS = ("path", "type", "base_offset", "bytes", "begin_timestamp", "end_timestamp")


@click.command("stat")
@tier_options(has_defaults=True)
@messages.topic_option(help="Only this topic, with its segments.")
@number("--queue", 0, None, "Only this queue.", metavar="Q")
@output_option
def stat(tier: TierOptions, topic: str | None, queue: int | None, out: Output) -> None:
    """Summarise a tier. With --topic also list the segments.

    If the backend charges by request, also show the requests of this summary.
    """
    from tieredstore.cli.composition import open_tier
    from tieredstore.cli.output.queues import queue_rows

    with open_tier(tier) as opened:
        catalogue = opened.catalogue()
        queues = catalogue.select(topic, queue, opened.broker)
        rows = list(queue_rows(opened.provider, queues))
        indexes = [extent for extents in catalogue.indexes.values() for extent in extents]
        whole = topic is None and queue is None
        record: dict[str, object] = {
            "tier": opened.provider.url,
            "brokers": sorted({found.broker for found in queues}),
            "topics": len({(found.broker, found.topic) for found in queues}),
            "queues": len(queues),
            "messages": sum(cast(int, row["messages"] or 0) for row in rows),
            "commit_log_segments": sum(len(found.commit_log) for found in queues),
            "commit_log_bytes": _bytes(e for found in queues for e in found.commit_log),
            "consume_queue_segments": sum(len(found.consume_queue) for found in queues),
            "consume_queue_bytes": _bytes(e for found in queues for e in found.consume_queue),
            "index_segments": len(indexes) if whole else None,
            "index_bytes": _bytes(indexes) if whole else None,
            "min_store_timestamp": _find_least(row["min_store_timestamp"] for row in rows),
            "max_store_timestamp": _find_most(row["max_store_timestamp"] for row in rows),
            **_written(tier.state if whole else None),
            "segments": [] if whole else _segments(catalogue, queues),
            **usage_fields(read_usage(opened.provider)),
        }
        tables = {"segments": SEGMENT_COLUMNS, **USAGE_TABLE}
        out.record(record, tables)


def _written(state: Path | None) -> dict[str, object]:
    """Return the numbers of written bytes that the tier's last writer saved in its state
    directory."""
    from tieredstore.tier.state_files import read_written_bytes

    found = None if state is None else read_written_bytes(state)
    return {
        "kept_bytes": found and found.kept,
        "merged_bytes": found and found.merged,
        "copied_bytes": found and found.copied,
        "written_per_kept_byte": found and found.per_kept_byte,
    }


def _bytes(extents: Iterable[SegmentExtent]) -> int:
    return sum(extent.size_bytes for extent in extents)


def _find_least(times: Iterable[object]) -> int | None:
    return min((time for time in times if isinstance(time, int)), default=None)


def _find_most(times: Iterable[object]) -> int | None:
    return max((time for time in times if isinstance(time, int)), default=None)


def _segments(catalogue: TierCatalogue, queues: list[QueueFiles]) -> list[dict[str, object]]:
    from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS

    rows: list[dict[str, object]] = []
    for queue in queues:
        for extent in (*queue.commit_log, *queue.consume_queue):
            entry = None if catalogue.metadata is None else catalogue.metadata.get(extent.id)
            written = entry is not None and entry.begin_timestamp_ms != NEVER_WRITTEN_MS
            rows.append(
                {
                    "path": extent.id.path,
                    "type": extent.id.type.name,
                    "base_offset": extent.base_offset,
                    "bytes": extent.size_bytes,
                    "begin_timestamp": entry.begin_timestamp_ms if entry and written else None,
                    "end_timestamp": entry.end_timestamp_ms if entry and written else None,
                }
            )
    return rows


INDEX_UNREADABLE = "index-unreadable"


@click.command("query")
@tier_options(has_defaults=True)
@messages.topic_option(help="The topic (needed with --key).")
@number("--queue", 0, None, "Only this queue.", metavar="Q")
@value("--key", "K", "One of the message's KEYS, or its UNIQ_KEY.")
@value("--msg-id", "ID", "UNIQ_KEY (KEYS do not count), or offset message id as `cat` prints it.")
@messages.time_options
@number("--limit", 1, 100_000, "At most so many messages.", default=64)
@number(
    "--unindexed-bytes",
    0,
    None,
    "Of what the index does not have yet, read so much at most.",
    default=256 << 20,
)
@messages.on_damage_option
@message_output_options
def query(
    tier: TierOptions,
    topic: str | None,
    queue: int | None,
    key: str | None,
    msg_id: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    unindexed_bytes: int,
    on_damage: str,
    out: MessageOutput,
) -> int:
    """Find messages by --topic and --key, or by --msg-id. Exit code 3 if none is found.

    Messages that the index lacks are read up to --unindexed-bytes. Exit code 9 if none was found
    and more are unread. With --state, index files that are not uploaded yet are searched too.
    """
    if (key is None) == (msg_id is None):
        raise click.UsageError("give either --topic and --key, or --msg-id")
    if key is not None and topic is None:
        raise click.UsageError("--key needs --topic")
    from tieredstore.cli.composition import open_tier
    from tieredstore.scan.findings import LeftOut
    from tieredstore.scan.keys.search import (
        FIRST_MS,
        LAST_MS,
        find_by_key,
        find_by_message_id,
        has_key,
    )
    from tieredstore.scan.keys.unfinished import INDEX_UNFINISHED, settle_index
    from tieredstore.scan.keys.unindexed import Unindexed, find_unindexed
    from tieredstore.scan.rows import message_row

    now = SYSTEM_CLOCK.now_ms()
    since_ms = None if since is None else parse_time(since, now)
    until_ms = None if until is None else parse_time(until, now)
    require_order(since_ms, until_ms)
    left_out, first = LeftOut(), list[Finding]()

    def tell(finding: Finding) -> None:
        left_out(finding)
        if finding.severity is Severity.DAMAGE:
            first.append(finding)
            if on_damage == "skip" or finding.kind == INDEX_UNREADABLE or len(first) > 1:
                say(str(finding), "warning")
        elif finding.kind == INDEX_UNFINISHED:
            say(str(finding))

    with open_tier(tier) as opened:
        catalogue = settle_index(opened.provider, opened.catalogue(), tell)
        queues = catalogue.select(topic, queue, opened.broker)
        places = opened.provider, catalogue, queues
        unsealed = opened.find_unsealed_index()
        is_id = key is None
        wanted = key if key is not None else msg_id or ""
        more: dict[str, Any] = {
            "since_ms": FIRST_MS if since_ms is None else since_ms,
            "until_ms": LAST_MS if until_ms is None else until_ms,
            "limit": limit,
            "unsealed": unsealed,
            "on_finding": tell,
        }
        if key is not None and topic is not None:
            hits = find_by_key(*places, topic, key, **more)
        else:
            hits = find_by_message_id(*places, wanted, **more)
        looked = Unindexed([])
        # An offset message id is found without an index.
        if len(hits) < limit and all(has_key(hit.message, wanted, is_id=is_id) for hit in hits):
            looked = find_unindexed(
                *places,
                wanted,
                is_id=is_id,
                since_ms=since_ms,
                until_ms=until_ms,
                limit=limit,
                most_bytes=unindexed_bytes,
                on_finding=tell,
            )
        hits = _merge(hits, looked.hits)[:limit]
        rows = (message_row(hit.message, hit.queue.broker, out.body) for hit in hits)
        found = out.write(MESSAGE_COLUMNS, rows)
    if not found:
        what = f"key {key!r} in topic {topic!r}" if key is not None else f"id {msg_id!r}"
        say(f"no message with {what}; {_describe(looked)}")
    elif looked.left_messages:
        say(_describe(looked))
    if left_out.count:
        if on_damage == "fail":
            raise first[0].to_error()
        return int(ExitCode.DAMAGE)
    if found:
        return int(ExitCode.OK)
    return int(ExitCode.NOT_INDEXED if looked.left_messages else ExitCode.NOT_FOUND)


def _merge(hits: list[Hit], more: list[Hit]) -> list[Hit]:
    """Merge search results without duplicates, ordered by queue and offset."""
    found = {(hit.queue.path, hit.message.queue_offset): hit for hit in (*hits, *more)}
    return sorted(
        found.values(),
        key=lambda hit: (
            hit.queue.broker,
            hit.queue.topic,
            hit.queue.queue_id,
            hit.message.queue_offset,
        ),
    )


def _describe(looked: Unindexed) -> str:
    text = f"read {looked.messages:,} messages that the index does not name"
    if looked.left_messages:
        text += (
            f"; {looked.left_messages:,} more were not looked at: --unindexed-bytes reads them, "
            "`rebuild index` makes it whole"
        )
    return text


TABLES = ".tables"
_TABLE_COLUMNS = ("table", "queues", "bytes")


@click.command("sql")
@click.argument("query")
@tier_options(has_defaults=True)
@messages.search_times_option
@messages.on_damage_option
@body_option
@rows_output_options
def sql(
    query: str,
    tier: TierOptions,
    search_times: str,
    on_damage: str,
    body: str,
    output: str,
    wide: bool,
    defuse_formulas: bool,
) -> int:
    """Run a SELECT in which each topic of a tier is a table. `-` is standard input.

    `.tables` lists the topics, and `describe orders` the columns of one. Only the required columns
    and messages are read, by conditions on queue, queue offset, store time and keys.
    """
    from tieredstore.cli.composition import locate_tier
    from tieredstore.cli.output.forms import Form, make_output, write_form
    from tieredstore.cli.sql.session import SqlSession, plain_value
    from tieredstore.scan.rows import BODY_ERROR, BodyForm
    from tieredstore.table import Tier

    form, shown = Form(output), BodyForm(body)
    is_json = form in (Form.JSON, Form.NDJSON)
    text = (sys.stdin.read() if query == "-" else query).strip()
    out = make_output(form, is_wide=wide)
    with closing(SqlSession(Tier(locate_tier(tier)), search_times, on_damage)) as session:
        if text.rstrip(";") == TABLES:
            write_form(out, form, _TABLE_COLUMNS, session.list_tables(), defuses=defuse_formulas)
            return int(ExitCode.OK)
        columns, rows = session.run(text)

        def make_rows() -> Iterator[dict[str, object]]:
            for values in rows:
                cells = (plain_value(value, shown, is_json=is_json) for value in values)
                row = dict(zip(columns, cells, strict=True))
                if is_json and row.get(BODY_ERROR, "") is None:
                    del row[BODY_ERROR]
                yield row

        if not write_form(out, form, columns, make_rows(), keeps_all=True, defuses=defuse_formulas):
            say("no row")
        return int(messages.end_with(session.left_out))
