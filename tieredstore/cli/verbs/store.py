"""Verbs over a broker's local store: check, recovery, totals."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tieredstore.cli.exits import ExitCode, note_store
from tieredstore.cli.lazy import VerbGroup
from tieredstore.cli.logs.choice import say
from tieredstore.cli.options.collecting import collect
from tieredstore.cli.options.output import output_option, yes_option
from tieredstore.cli.output.cells import plain_text
from tieredstore.cli.output.rows import Output, OutputFormat, Tables
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.errors import Corrupt

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig
    from tieredstore.local.queues.interface import ConsumeQueueReader
    from tieredstore.local.read_only import ReadOnlyMessageStore
    from tieredstore.local.recovery.plan import RecoveryPlan


@dataclass(frozen=True, slots=True)
class LocalStoreOptions:
    """Options for a local store. `config`: broker.conf with the layout of the store. `rebuild`:
    True to rebuild queues and index from the log."""

    config: Path | None = None
    rebuild: bool = False

    def load_config(self, directory: Path) -> StoreConfig:
        """Return the configuration of a store, from the given file or inferred from the store's
        files. Raises Invalid."""
        import msgspec

        from tieredstore.local.recovery.inferring import infer_config
        from tieredstore.scan.location import load_config

        if self.config is None:
            _check_form(directory)
            return infer_config(directory)
        found = load_config(self.config).config
        return msgspec.structs.replace(found, store_path_root_dir=str(directory))

    def plan_recovery(self, directory: Path) -> tuple[StoreConfig, RecoveryPlan]:
        """Return the configuration and recovery plan of a store that no process is using. Raises
        Fenced if one is, Invalid, and Corrupt for damage that an ordinary recovery cannot
        repair."""
        from tieredstore.local.recovery.planning import plan_recovery
        from tieredstore.local.recovery.store_lock import refuse_owned

        config = self.load_config(directory)
        refuse_owned(directory)
        try:
            return config, plan_recovery(directory, config, full=self.rebuild, compares=True)
        except Corrupt as error:
            if self.rebuild:
                raise
            raise Corrupt(
                f"{error}. Run `tieredstore store recover {directory} --rebuild` to rebuild "
                "queues and index from the log",
                path=error.path,
            ) from error


def _check_form(directory: Path) -> None:
    """Raise Invalid for a store whose log cannot be read (`check_log_form`), such as a log in
    several folders."""
    from tieredstore.config import StoreConfig, read_broker_conf
    from tieredstore.errors import Invalid
    from tieredstore.local.log.foreign_log import check_log_form
    from tieredstore.scan.location import find_conf_beside

    path = find_conf_beside(directory)
    try:
        folder = "" if path is None else read_broker_conf(path).get("storePathCommitLog", "")
    except Invalid:
        return
    if "," in folder:
        check_log_form(directory, StoreConfig(store_path_commit_log=folder))


local_store_options = collect(
    "local",
    LocalStoreOptions,
    {
        "config": {
            "flag": "--config",
            "metavar": "FILE",
            "type": click.Path(path_type=Path),
            "help": "The broker's broker.conf. Without it, sizes come from the files.",
        },
        "rebuild": {
            "flag": "--rebuild",
            "is_flag": True,
            "help": "Check every message, and rebuild all queues and the index.",
        },
    },
)
"""Adds --config and --rebuild, passed to the command as a `LocalStoreOptions` named `local`."""


_PLAN_TABLES: Tables = {
    "queue_cuts": ("topic", "queue_id", "from_offset", "to_offset"),
    "queues_to_build": ("topic", "queue_id", "from_offset", "until_offset"),
    "index_cuts": ("path", "items"),
    "doubtful_records": ("topic", "offset", "reason"),
    "lost_ends": ("topic", "queue_id", "offset"),
}
_HIDDEN = frozenset({"warnings", "needs_consent", "wipe", "records_behind"})


def write_plan(out: Output, plan: RecoveryPlan) -> None:
    """Write a recovery plan, completely as JSON or with the most important fields as a table."""
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
    out.record({name: value for name, value in fields.items() if name not in _HIDDEN}, _PLAN_TABLES)
    for warning in plan.warnings:
        out.line(f"warning: {warning}")
    if plan.needs_consent:
        out.line(f"loss: {plan.needs_consent}")
    out.flush()


@click.group("store", cls=VerbGroup)
def store() -> None:
    """Check a broker's local store (its storePathRootDir), and recover it."""


@store.command("check", short_help="Show what a recovery of a local store would do.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@local_store_options
@output_option
def check(directory: Path, local: LocalStoreOptions, out: Output) -> int:
    """Show what a recovery of the store in DIR would do. Writes nothing.

    Exit code 1 if a recovery is needed or a part of the log cannot be read, 5 if another process
    uses the store.
    """
    from tieredstore.cli.logs.lines import log_to_stderr

    log_to_stderr()
    note_store(directory)
    _, plan = local.plan_recovery(directory)
    write_plan(out, plan)
    return int(ExitCode.DAMAGE if plan.is_needed or plan.has_unread else ExitCode.OK)


@store.command("recover", short_help="Recover a local store that was not stopped cleanly.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@local_store_options
@yes_option
@output_option
def recover(directory: Path, local: LocalStoreOptions, yes: bool, out: Output) -> int:
    """Recover the store in DIR, and leave it cleanly stopped. A dry run without --yes.

    With --yes, valid messages after a damaged one are cut off, as listed in the plan. Any other
    damage is recovered when the store is opened.
    """
    from tieredstore.cli.logs.lines import log_to_stderr
    from tieredstore.local.message_store import DefaultMessageStore

    log_to_stderr()
    note_store(directory)
    config, plan = local.plan_recovery(directory)
    if yes and (plan.is_needed or local.rebuild):
        store = DefaultMessageStore(config)
        store.load(accept_loss=True, rebuild=local.rebuild or plan.needs_rebuild)
        try:
            store.start()
        finally:
            store.shutdown()
    write_plan(out, plan)
    if not yes and plan.is_needed:
        say("nothing was changed, add --yes to do this")
        return int(ExitCode.DAMAGE)
    return int(ExitCode.OK)


_UNITS: Final = 1 << 16
_LEFT_OUT: Final = "batch consume queue (BatchCQ)"
_log = logging.getLogger(__name__)
TOPIC_COLUMNS = ("topic", "queues", "messages", "bytes")
TIME_COLUMNS = ("up_to_ms", "puts", "put_locks")


@store.command("stat", short_help="Summarise a local store.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@output_option
def stat(directory: Path, out: Output) -> int:
    """Summarise the local store in DIR. Writes nothing, and may run beside its owner."""
    from tieredstore.cli.logs.lines import log_to_stderr
    from tieredstore.local.read_only import open_read_only

    log_to_stderr()
    note_store(directory)
    store = open_read_only(directory)
    try:
        kept = _describe_statistics(store.root)
        lists = {"put_times": TIME_COLUMNS} if kept else {}
        out.record({**_describe(store), **kept}, {"topics": TOPIC_COLUMNS, **lists})
        return int(ExitCode.DAMAGE if store.compare().unread else ExitCode.OK)
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
        "topics_left_out": dict.fromkeys(sorted(store.batch_topics), _LEFT_OUT),
        "topics": [
            {"topic": topic, "queues": queues, "messages": messages, "bytes": size}
            for topic, (queues, messages, size) in sorted(topics.items())
        ],
    }


def _describe_statistics(root: Path) -> dict[str, object]:
    """Return the statistics saved by the store's owner, if any."""
    from tieredstore.local.statistics import read_statistics

    try:
        kept = read_statistics(root)
    except Corrupt as damage:  # all other values are still useful
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
    """Return the size of a queue's messages in the commit log (bytes), computed from its units."""
    offset, size = queue.min_offset, 0
    while len(units := queue.read_units(offset, _UNITS)):
        size += int(units["size"].sum(dtype="int64"))
        offset += len(units)
    return size
