"""`tieredstore store stat`: how much a local store holds, and what is on disk of it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.rows import Output
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.errors import Corrupt

if TYPE_CHECKING:
    from tieredstore.local.queues.interface import ConsumeQueueReader
    from tieredstore.local.read_only import ReadOnlyMessageStore

_UNITS: Final = 1 << 16
_log = logging.getLogger(__name__)
TOPIC_COLUMNS = ("topic", "queues", "messages", "bytes")
TIME_COLUMNS = ("up_to_ms", "puts", "put_locks")


@click.command("stat")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@output_option
def command(directory: Path, out: Output) -> None:
    """Summarise the local store in DIR. Writes nothing, and may run beside its owner."""
    from tieredstore.cli.logs.lines import log_to_stderr
    from tieredstore.local.read_only import open_read_only

    log_to_stderr()
    store = open_read_only(directory)
    try:
        kept = _describe_statistics(store.root)
        lists = {"put_times": TIME_COLUMNS} if kept else {}
        out.record({**_describe(store), **kept}, {"topics": TOPIC_COLUMNS, **lists})
    finally:
        store.shutdown()


def _describe(store: ReadOnlyMessageStore) -> dict[str, object]:
    from tieredstore.local.index.reader import index_paths
    from tieredstore.local.recovery.checkpoint import read_checkpoint
    from tieredstore.local.recovery.store_lock import is_owned

    topics: dict[str, list[int]] = {}
    for key in store.list_queues():
        queue = store.find_queue(*key)
        if queue is not None:
            counts = topics.setdefault(key.topic, [0, 0, 0])
            counts[0] += 1
            counts[1] += queue.max_offset - queue.min_offset
            counts[2] += _measure_records(queue)
    held_back = store.find_held_back(lambda _: True).values()
    held_times = [found.first_ms for found in held_back if found.first_ms > 0]
    log = store.commit_log
    checkpoint = read_checkpoint(store.root)
    paths = [Path(path) for path in index_paths(store.root)]
    return {
        "store": str(store.root),
        "owned": is_owned(store.root),
        "unclean": store.is_unclean,
        "served_until": store.served_until_ms,
        "topics_count": len(topics),
        "queues": sum(queues for queues, _, _ in topics.values()),
        "messages": sum(messages for _, messages, _ in topics.values()),
        "message_bytes": sum(size for _, _, size in topics.values()),
        "held_back_messages": sum(found.messages for found in held_back),
        "held_back_since": min(held_times, default=None),
        "commit_log_files": len(log.run.offsets),
        "commit_log_bytes": log.run.end - log.run.start,
        "commit_log_min_offset": log.min_offset,
        "index_files": len(paths),
        "index_bytes": sum(path.stat().st_size for path in paths),
        "commit_log_flushed_until": checkpoint.physic_msg_timestamp_ms or None,
        "consume_queues_flushed_until": checkpoint.logics_msg_timestamp_ms or None,
        "dispatched_offset": checkpoint.logics_physical_offset or None,
        "topics": [
            {"topic": topic, "queues": queues, "messages": messages, "bytes": size}
            for topic, (queues, messages, size) in sorted(topics.items())
        ],
    }


def _describe_statistics(root: Path) -> dict[str, object]:
    """What the owner has left of its statistics; nothing where there is none."""
    from tieredstore.local.statistics.kept import read_statistics

    try:
        kept = read_statistics(root)
    except Corrupt as damage:  # all else is worth knowing
        _log.warning("%s", damage)
        kept = None
    if kept is None:
        return {}
    times, locks = kept.put_times, kept.put_lock_times
    return {
        "statistics_written": kept.written_ms,
        "statistics_age_ms": max(SYSTEM_CLOCK.now_ms() - kept.written_ms, 0),
        "statistics_since": kept.since_ms,
        "flush_behind_bytes": kept.flush_behind_bytes,
        "dispatch_behind_bytes": kept.dispatch_behind_bytes,
        "index_behind_bytes": kept.index_behind_bytes,
        "dispatch_behind_ms": kept.dispatch_behind_ms,
        "puts_refused": kept.puts_refused,
        "slow_puts": kept.slow_puts,
        "put_time_total_ms": times.total_ms,
        "put_time_max_ms": times.max_ms,
        "put_lock_time_total_ms": locks.total_ms,
        "put_lock_time_max_ms": locks.max_ms,
        "put_times": [
            {"up_to_ms": bound, "puts": puts, "put_locks": held}
            for bound, puts, held in zip(
                (*kept.time_bounds_ms, None), times.counts, locks.counts, strict=False
            )
        ],
    }


def _measure_records(queue: ConsumeQueueReader) -> int:
    """How many bytes of the log the messages of a queue are, by its units."""
    offset, size = queue.min_offset, 0
    while len(units := queue.read_units(offset, _UNITS)):
        size += int(units["size"].sum(dtype="int64"))
        offset += len(units)
    return size
