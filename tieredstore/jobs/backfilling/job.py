"""Job that turns a table into segments, consume queues, index and metadata of a tier."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from tieredstore.disk.file_operations import FILES, cut_zeros
from tieredstore.errors import Invalid
from tieredstore.jobs.backfilling.measure import Measured, measure, measure_tasks, unpack_numbers
from tieredstore.jobs.backfilling.plan import (
    Piece,
    QueuePlan,
    QueueStart,
    pieces_of,
    queue_plans,
    starts_of,
)
from tieredstore.jobs.backfilling.rows import RowRules
from tieredstore.jobs.backfilling.table_files import TableFile, fingerprint, list_table
from tieredstore.jobs.backfilling.target import BackfillTarget, open_target, path_of
from tieredstore.jobs.backfilling.write import WrittenPiece, write, write_task
from tieredstore.jobs.options import BackfillOptions
from tieredstore.jobs.run import TASK_BYTES, JobRun, gather_groups
from tieredstore.scan.location import TierLocation
from tieredstore.tier_url import show_url

SEGMENT_BYTES = 256 << 20
"""Maximum commit log bytes of a segment. A segment is written by one task."""


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The segments into which one queue is written."""

    plan: QueuePlan
    start: QueueStart
    pieces: list[Piece]


def run_backfill(
    run: JobRun,
    tier: TierLocation,
    table: str,
    options: BackfillOptions | None = None,
    *,
    task_bytes: int = TASK_BYTES,
) -> dict[str, object]:
    """Append the messages of a table (a Parquet file or a folder of them: a path, file:// or s3://)
    to the queues of a tier, and return the report. A table that was already backfilled, according
    to the tier's state, is skipped. A second call with the same journal continues the job. Raises
    Invalid for rows that are not messages or do not continue their queue, Fenced while another
    writer (a broker) owns the tier, Corrupt, Unavailable."""
    options = options or BackfillOptions()
    segment_bytes = find_segment_bytes(options)
    files = run.do_once("source", lambda: list_table(table), list[TableFile])
    with open_target(tier, take_over=options.take_over) as target:
        past = _locate_note(target, table, files, options)
        if past.exists():
            done = orjson.loads(cut_zeros(past.read_bytes()))
            target.check_done(done["queues"], done.pop("generations", {}), past)
            return run.report({**done, "done_before": True})
        rules = RowRules(
            options.topic,
            options.queues,
            run.do_once("now", lambda: int(time.time() * 1000), int),
            tier.config.broker_name,
            tier.config.broker_cluster_name,
            tier.config.max_message_size_bytes,
        )
        found = run.map(
            "measure", measure, measure_tasks(table, files, rules, task_bytes), Measured
        )
        queues = _plan_pieces(run, target, queue_plans(found, files), tier, segment_bytes)
        del found
        _write(run, target, table, files, rules, tier, queues, task_bytes)
        result = _result(table, queues)

        def record() -> None:
            past.parent.mkdir(parents=True, exist_ok=True)
            topics = {queue.plan.topic for queue in queues}
            note = {**result, "generations": target.find_generations(topics)}
            FILES.replace_file(past, orjson.dumps(note, option=orjson.OPT_INDENT_2))

        run.do_once("record", record, None)
        return run.report({**result, "done_before": False})


def find_segment_bytes(options: BackfillOptions) -> int:
    """Return the maximum size of a segment. Raises Invalid for options that are too small."""
    if options.queues < 1:
        raise Invalid(f"queues: expected at least 1, found {options.queues}")
    size_bytes = SEGMENT_BYTES if options.segment_bytes is None else options.segment_bytes
    if size_bytes < 1:
        raise Invalid(f"segment bytes: expected at least 1, found {size_bytes}")
    return size_bytes


def _locate_note(
    target: BackfillTarget, table: str, files: Sequence[TableFile], options: BackfillOptions
) -> Path:
    identity = {
        "table": show_url(table),
        "files": fingerprint(files),
        "topic": options.topic,
        "queues": options.queues,
    }
    digest = hashlib.sha256(orjson.dumps(identity)).hexdigest()
    return target.ledger / f"{digest[:32]}.json"


def _plan_pieces(
    run: JobRun,
    target: BackfillTarget,
    plans: Sequence[QueuePlan],
    tier: TierLocation,
    segment_bytes: int,
) -> list[_Pieces]:
    broker = tier.config.broker_name

    def pin() -> dict[str, QueueStart]:
        found = target.ends(plans)
        starts_of(plans, found, broker)  # A rerun may succeed after the cause is repaired.
        return found

    ends = run.do_once("pin", pin, dict[str, QueueStart])
    most = min(segment_bytes, tier.config.commit_log_max_size_bytes)
    limit = run.do_once("segment_bytes", lambda: most, int)
    starts = starts_of(plans, ends, broker)
    return [
        _Pieces(plan, start, list(pieces_of(plan, broker, start, limit)))
        for plan, start in zip(plans, starts, strict=True)
    ]


def _write(
    run: JobRun,
    target: BackfillTarget,
    table: str,
    files: Sequence[TableFile],
    rules: RowRules,
    tier: TierLocation,
    queues: Sequence[_Pieces],
    task_bytes: int,
) -> None:
    pieces = [piece for queue in queues for piece in queue.pieces]
    starts = [(queue.plan, queue.start) for queue in queues]
    target.check_store(
        [queue.plan for queue in queues if _name_commit(queue, tier) not in run.journal]
    )
    tasks = [
        write_task(table, files, rules, tier, part, target.epoch_number)
        for part in gather_groups(pieces, lambda piece: piece.size_bytes, task_bytes)
    ]
    if not all(f"write:{task.key}" in run.journal for task in tasks):
        target.check_ends(starts)  # Later, `commit` compares unit by unit.
    run.do_once("announce", lambda: target.announce(starts, pieces), None)
    outcomes = run.map("write", write, tasks, list[WrittenPiece])
    codes = iter([piece.tags_codes for outcome in outcomes for piece in outcome])
    for queue in queues:
        of_queue = [next(codes) for _ in queue.pieces]

        def commit(queue: _Pieces = queue, of_queue: list[bytes] = of_queue) -> None:
            tags_codes = np.concatenate([unpack_numbers(code) for code in of_queue])
            target.commit(queue.plan, queue.start, queue.pieces, tags_codes)

        run.do_once(_name_commit(queue, tier), commit, None)
    run.do_once("index", lambda: target.index([queue.plan for queue in queues]), None)


def _name_commit(queue: _Pieces, tier: TierLocation) -> str:
    """Return the journal step that commits a queue."""
    return f"commit:{path_of(queue.plan, tier.config.broker_name)}"


def _result(table: str, queues: Sequence[_Pieces]) -> dict[str, object]:
    rows = [
        {
            "topic": queue.plan.topic,
            "queue_id": queue.plan.queue_id,
            "from_offset": queue.start.queue_offset,
            "until_offset": queue.start.queue_offset + len(queue.plan.rows),
            "message_bytes": queue.plan.size_bytes,
            "segments": len(queue.pieces),
        }
        for queue in queues
    ]
    return {
        "table": show_url(table),
        "messages": sum(len(queue.plan.rows) for queue in queues),
        "message_bytes": sum(queue.plan.size_bytes for queue in queues),
        "segments": sum(len(queue.pieces) for queue in queues),
        "queues": rows,
    }
