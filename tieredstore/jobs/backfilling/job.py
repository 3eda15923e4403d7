"""The job: a table becomes segments, consume queues, index and metadata of a tier."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from tieredstore.disk.file_operations import FILES
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
from tieredstore.jobs.run import TASK_BYTES, JobRun, gather_groups
from tieredstore.scan.location import TierLocation
from tieredstore.tier_url import show_url

SEGMENT_BYTES = 256 << 20
"""Commit log bytes of a segment, at most: each is written by one task."""
DEFAULT_QUEUES = 4


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """topic: of a table that does not name one; queues: over how many queues the messages of a
    table without queue ids are spread; segment_bytes: of a commit log segment, at most
    (`tieredStoreCommitLogMaxSize` is a limit as well); take_over: end another writer's right where
    the backend can."""

    topic: str | None = None
    queues: int = DEFAULT_QUEUES
    segment_bytes: int = SEGMENT_BYTES
    take_over: bool = False


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The segments of one queue."""

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
    """Write the messages of a table (a Parquet file or a folder of them: a path, file:// or s3://)
    into a tier, behind what its queues have. Returns the report.

    A table that the tier's state says was backfilled is left alone. Raises Invalid for rows that
    are no messages or do not go on where their queue ends, Fenced while another writer (a broker)
    has the tier, Corrupt, Unavailable; called again with the same journal, it goes on.
    """
    options = options or BackfillOptions()
    _check(options)
    files = run.do_once("source", lambda: list_table(table), list[TableFile])
    with open_target(tier, take_over=options.take_over) as target:
        past = _locate_note(target, table, files, options)
        if past.exists():
            return run.report({**orjson.loads(past.read_bytes()), "done_before": True})
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
        queues = _plan_pieces(run, target, queue_plans(found, files), tier, options)
        del found
        _write(run, target, table, files, rules, tier, queues, task_bytes)
        result = _result(table, queues)

        def record() -> None:
            past.parent.mkdir(parents=True, exist_ok=True)
            FILES.replace_file(past, orjson.dumps(result, option=orjson.OPT_INDENT_2))

        run.do_once("record", record, None)
        return run.report({**result, "done_before": False})


def _check(options: BackfillOptions) -> None:
    if options.queues < 1:
        raise Invalid(f"queues: expected at least 1, found {options.queues}")
    if options.segment_bytes < 1:
        raise Invalid(f"segment bytes: expected at least 1, found {options.segment_bytes}")


def _locate_note(
    target: BackfillTarget, table: str, files: Sequence[TableFile], options: BackfillOptions
) -> Path:
    """Where it is noted that these very files were backfilled."""
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
    options: BackfillOptions,
) -> list[_Pieces]:
    broker = tier.config.broker_name

    def pin() -> dict[str, QueueStart]:
        found = target.ends(plans)
        starts_of(plans, found, broker)  # what is wrong now may be right when it is run again
        return found

    ends = run.do_once("pin", pin, dict[str, QueueStart])
    most = min(options.segment_bytes, tier.config.commit_log_max_size_bytes)
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
    tasks = [
        write_task(table, files, rules, tier, part, target.epoch_number)
        for part in gather_groups(pieces, lambda piece: piece.size_bytes, task_bytes)
    ]
    if not all(f"write:{task.key}" in run.journal for task in tasks):
        target.check_ends(starts)  # later, `commit` compares unit by unit
    run.do_once("announce", lambda: target.announce(starts, pieces), None)
    outcomes = run.map("write", write, tasks, list[WrittenPiece])
    codes = iter([piece.tags_codes for outcome in outcomes for piece in outcome])
    for queue in queues:
        of_queue = [next(codes) for _ in queue.pieces]

        def commit(queue: _Pieces = queue, of_queue: list[bytes] = of_queue) -> None:
            tags_codes = np.concatenate([unpack_numbers(code) for code in of_queue])
            target.commit(queue.plan, queue.start, queue.pieces, tags_codes)

        run.do_once(f"commit:{path_of(queue.plan, tier.config.broker_name)}", commit, None)
    run.do_once("index", lambda: target.index([queue.plan for queue in queues]), None)


def _result(table: str, queues: Sequence[_Pieces]) -> dict[str, object]:
    return {
        "table": show_url(table),
        "messages": sum(len(queue.plan.rows) for queue in queues),
        "message_bytes": sum(queue.plan.size_bytes for queue in queues),
        "segments": sum(len(queue.pieces) for queue in queues),
        "queues": [
            {
                "topic": queue.plan.topic,
                "queue_id": queue.plan.queue_id,
                "from_offset": queue.start.queue_offset,
                "until_offset": queue.start.queue_offset + len(queue.plan.rows),
                "message_bytes": queue.plan.size_bytes,
                "segments": len(queue.pieces),
            }
            for queue in queues
        ],
    }
