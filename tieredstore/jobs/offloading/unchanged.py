"""What a run that left nothing saw of store, tier and state: one that sees the same has nothing to
upload, and says so without opening the queues.

A file in the state directory has digests of it. It tells that nothing has changed, and no more:
where something has, or cannot be read, all queues are opened as if the file was not there, and
their last messages compared before anything is uploaded. Only of a store that nobody owns, with
its tier and its metadata in files.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tieredstore.config import JSON_METADATA
from tieredstore.contracts.segment import WriterRecord
from tieredstore.contracts.usage import read_usage
from tieredstore.contracts.wrapping import find_layer
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES, make_stamp
from tieredstore.errors import TieredStoreError
from tieredstore.jobs.offloading.behind import Behind
from tieredstore.jobs.offloading.report import OffloadReport
from tieredstore.local.log.commit_log import CommitLogReader, find_log_directory
from tieredstore.local.log.foreign_log import ForeignCommitLog
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue_store import BATCH_DIRECTORY, CONSUME_QUEUE_DIRECTORY
from tieredstore.local.queues.kinds import find_queue_database
from tieredstore.local.recovery.store_lock import has_abort_file, is_owned
from tieredstore.local.topic_table import read_topics
from tieredstore.message.layout import MAGIC_BLANK, MAGICS
from tieredstore.tier.flat.segment import STATUS_DELETED
from tieredstore.tier.index.service import DIRECTORY as INDEX_DIRECTORY
from tieredstore.tier.state_lock import is_held

if TYPE_CHECKING:
    from tieredstore.contracts.metadata_store import MetadataStore
    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.jobs.offloading.options import OffloadOptions
    from tieredstore.jobs.offloading.source import OffloadSource
    from tieredstore.jobs.target import TierTarget
    from tieredstore.local.read_only import ReadOnlyMessageStore

SEEN_FILE: Final = "tieredstore.offloaded.json"
"""In a state directory; Java ignores it."""
_FORMAT: Final = 1
"""Another one when what is in the file changes, or which messages an upload takes."""
_HEAD: Final = struct.Struct(">iI")
_MOST_RECORDS: Final = 10_000
"""Records without a unit, or of topics that were not chosen, that are walked over for the last."""
_log = logging.getLogger(__name__)


class _Last(msgspec.Struct, frozen=True):
    """The last record of a log: its byte, its size, and the byte at which the next one comes."""

    position: int
    size: int
    next_position: int


class _Signs(msgspec.Struct, frozen=True):
    """Digests of what decides what a run uploads."""

    settings: str
    store: str
    tier: str
    state: str = ""


class _Seen(msgspec.Struct, frozen=True):
    """The file. queues, skipped: of the run's report."""

    format: int
    last: _Last
    signs: _Signs
    queues: int
    skipped: dict[str, str]


def find_unchanged(options: OffloadOptions, target: TierTarget) -> OffloadReport | None:
    """Return the report of a run in which all is as the last one left it; None where it has to
    look, whatever the reason."""
    if options.take_over:
        return None
    try:
        seen = msgspec.json.decode(FILES.read(options.state / SEEN_FILE), type=_Seen)
        return _compare(seen, options, target) if seen.format == _FORMAT else None
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, TieredStoreError) as error:
        _log.info("%s: all queues are opened: %s", options.state / SEEN_FILE, error)
        return None


def _compare(seen: _Seen, options: OffloadOptions, target: TierTarget) -> OffloadReport | None:
    if _is_in_use(options.store) or is_held(options.state) or is_owned(options.state):
        return None
    looks: list[tuple[str, Callable[[], str]]] = [
        ("settings", lambda: _sign_settings(options, target)),
        ("state", lambda: _sign_state(options.state)),
        ("store", lambda: _sign_store(options, target, seen.last)),
    ]
    provider = target.open_provider(create=False)
    if provider is None:
        return None
    with closing(provider):
        broker = target.config.broker_name
        looks.append(("tier", lambda: _sign_tier(provider, broker, _list_tier(provider, broker))))
        for name, look in looks:
            if look() != getattr(seen.signs, name):
                _log.debug("all queues are opened: another %s than before", name)
                return None
        if _is_in_use(options.store):
            return None
        usage = read_usage(provider)
    nothing = Behind(0, 0.0, 0, None, "")
    return OffloadReport(seen.queues, skipped=seen.skipped, behind=nothing, usage=usage)


class LastLook:
    """What a run sees, for the next one. By the tier's writer, in this order: `forget`, before
    anything else is written; `see`, behind the upload; `leave`, when nothing turned out to be left;
    `keep`, when the metadata changes no more."""

    def __init__(
        self,
        options: OffloadOptions,
        target: TierTarget,
        provider: SegmentProvider,
        metadata: MetadataStore,
    ) -> None:
        self._options = options
        self._target = target
        self._provider = provider
        self._metadata = metadata
        self._path = options.state / SEEN_FILE
        self._last: _Last | None = None
        self._signs: _Signs | None = None
        self._report: OffloadReport | None = None

    def forget(self) -> None:
        """Remove what the run before left. Raises Unavailable, Invalid."""
        with wrap_os_errors("delete", self._path):
            FILES.unlink(self._path)

    def see(self, store: ReadOnlyMessageStore, source: OffloadSource) -> None:
        """See what there is now. Whoever then compares how far the tier is, has all of it."""
        config = self._target.config
        is_in_files = (
            self._provider.capabilities.rewritable
            and config.metadata_service_provider == JSON_METADATA
        )
        if not is_in_files or _is_in_use(self._options.store):
            return
        try:
            self._last = _find_last(store, source)
            if self._last is not None:
                segments = (
                    (one.path, int(one.type), one.base_offset, one.size)
                    for one in self._metadata.segments()
                    if one.status != STATUS_DELETED
                )
                self._signs = _Signs(
                    _sign_settings(self._options, self._target),
                    _sign_store(self._options, self._target, self._last),
                    _sign_tier(self._provider, config.broker_name, segments),
                )
        except TieredStoreError as error:
            _log.info("the next run opens all queues again: %s", error)

    def leave(self, report: OffloadReport) -> None:
        """Leave what was seen to the next run, of which this is the report."""
        self._report = report

    def keep(self) -> None:
        """Write what is left to the next run. Without room that one looks again."""
        last, signs, report = self._last, self._signs, self._report
        if last is None or signs is None or report is None or _is_in_use(self._options.store):
            return
        try:
            self._metadata.flush()
            signs = msgspec.structs.replace(signs, state=_sign_state(self._options.state))
            seen = _Seen(_FORMAT, last, signs, report.queues, report.skipped)
            FILES.replace_file(self._path, msgspec.json.encode(seen))
        except (OSError, TieredStoreError) as error:
            _log.info("%s: not written: %s", self._path, error)


def _is_in_use(store: Path) -> bool:
    """Whether a process owns a store, or has left it unclean: units may be missing then."""
    return is_owned(store) or has_abort_file(store)


# The end of the log


def _find_last(store: ReadOnlyMessageStore, source: OffloadSource) -> _Last | None:
    """Find the last record of the log, from the last one that a queue leads to on."""
    position, size = -1, 0
    for key in source.queues():
        queue = store.find_queue(*key)
        unit = None if queue is None else queue.unit(queue.max_offset - 1)
        if unit is not None and unit[0] > position:
            position, size = unit[:2]
    log = store.commit_log
    for _ in range(_MOST_RECORDS if position >= 0 else 0):
        following = _skip_rest(log, position + size)
        next_size, magic = _read_head(log, following)
        if magic == MAGIC_BLANK:
            following += log.file_size - following % log.file_size
            next_size, magic = _read_head(log, following)
        if not next_size and not magic:
            return _Last(position, size, following)
        if magic not in MAGICS:
            break
        position, size = following, next_size
    return None


def _skip_rest(log: CommitLogReader, end: int) -> int:
    """Where a record comes behind another: a file may end with bytes that have no room for one."""
    rest = -end % log.file_size
    return end + rest if rest < _HEAD.size else end


def _read_head(log: CommitLogReader, position: int) -> tuple[int, int]:
    """Size and magic of a record; zeros where nothing was written, or the log has no file yet."""
    head = log.get(position, _HEAD.size)
    size, magic = (0, 0) if head is None else _HEAD.unpack(head)
    return size, magic


# Digests


def _sign(parts: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else repr(part).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _sign_settings(options: OffloadOptions, target: TierTarget) -> str:
    fields = msgspec.structs.asdict(target.config)
    fields["plugin_properties"] = sorted(target.config.plugin_properties.items())
    places = [str(path.resolve()) for path in (options.store, options.state)]
    choice = (*options.topics, options.recovered)
    return _sign((target.url, places, choice, sorted(fields.items())))


def _sign_store(options: OffloadOptions, target: TierTarget, last: _Last) -> str:
    """Its topics, the files of its log and queues, the last record of the log and that nothing is
    behind it. A start and a stop of its broker show in the folder itself, where `abort` was."""
    root = options.store

    def look() -> Iterator[object]:
        yield make_stamp(root.stat())
        topics = read_topics(root)
        yield sorted(topics.attributes.items()), topics.version, sorted(topics.compacted)
        config = msgspec.structs.replace(target.config, store_path_root_dir=str(root))
        directory = find_log_directory(config, root)
        yield from _stamp_entries(directory, 1)
        yield from _stamp_entries(root / CONSUME_QUEUE_DIRECTORY, 3)
        yield from _stamp_entries(root / BATCH_DIRECTORY, 1)
        database = find_queue_database(root)
        yield from () if database is None else _stamp_entries(database, 1)
        files = PositionalFiles(writable=False)
        try:
            log = ForeignCommitLog(directory, files)
            log.refresh()
            yield bytes(log.get(last.position, last.size) or b"")
            yield _read_head(log, last.next_position)
        finally:
            files.close()

    with wrap_os_errors("look at", root):
        return _sign(look())


def _list_tier(provider: SegmentProvider, broker: str) -> Iterator[tuple[str, int, int, int]]:
    for one in provider.list(broker):
        yield one.id.path, int(one.id.type), one.id.base_offset, one.size_bytes


def _sign_tier(
    provider: SegmentProvider, broker: str, segments: Iterable[tuple[str, int, int, int]]
) -> str:
    """Who wrote last, and each segment with its size."""
    record = find_layer(provider, WriterRecord)
    writer = None if record is None else record.find_last_writer(broker)
    return _sign((writer, *sorted(one for one in segments if one[3])))


def _sign_state(state: Path) -> str:
    """The metadata, and what waits for the index."""

    def look() -> Iterator[object]:
        for path in sorted((state / "config").iterdir()):
            yield path.name
            yield path.read_bytes()
        yield from _stamp_entries(state / INDEX_DIRECTORY, 1)

    with wrap_os_errors("look at", state):
        return _sign(look())


def _stamp_entries(directory: Path | str, depth: int) -> Iterator[object]:
    """What is in a folder, and in those in it, so many deep."""
    try:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in found:
        yield entry.name, make_stamp(entry.stat())
        if depth > 1 and entry.is_dir():
            yield from _stamp_entries(entry.path, depth - 1)
