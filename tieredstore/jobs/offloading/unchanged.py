"""Detection that store, tier and state are unchanged since a complete run, in order to skip the
opening of all queues. A file in the state directory has digests of store, tier and state. If
anything has changed, or the file is unreadable, all queues are opened and compared as usual. The
file is only used if tier and metadata are files and the store has no owner."""

from __future__ import annotations

import hashlib
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.config import JSON_METADATA
from tieredstore.contracts.metadata_store import STATUS_DELETED, MetadataStore
from tieredstore.contracts.segment import SegmentProvider, WriterRecord
from tieredstore.contracts.usage import read_usage
from tieredstore.contracts.wrapping import find_layer
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES, make_stamp
from tieredstore.disk.notes import read_note
from tieredstore.errors import TieredStoreError
from tieredstore.jobs.offloading.behind import Behind
from tieredstore.jobs.offloading.report import OffloadReport
from tieredstore.jobs.offloading.source import OffloadSource
from tieredstore.jobs.options import OffloadOptions, list_names
from tieredstore.jobs.target import TierTarget
from tieredstore.local.broker_config import read_broker_config
from tieredstore.local.log.commit_log import CommitLogReader, find_log_directory
from tieredstore.local.log.foreign_log import ForeignCommitLog
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue_store import BATCH_DIRECTORY, CONSUME_QUEUE_DIRECTORY
from tieredstore.local.queues.kinds import find_queue_database
from tieredstore.local.read_only import ReadOnlyMessageStore
from tieredstore.local.recovery.store_lock import has_abort_file, is_owned
from tieredstore.local.topic_table import read_topics
from tieredstore.message.layout import MAGIC_BLANK, MAGICS
from tieredstore.tier.backup import CONFIG_FILES
from tieredstore.tier.identity.comparison import STATE_MEMORY
from tieredstore.tier.index.service import DIRECTORY as INDEX_DIRECTORY
from tieredstore.tier.state_files import is_held

SEEN_FILE: Final = "tieredstore.offloaded.json"
"""Name of the file with the digests, in a state directory. Java ignores the file."""
_FORMAT: Final = 1
"""Version of the content of SEEN_FILE, and of the rules that decide which messages are uploaded."""
_HEAD: Final = struct.Struct(">iI")
_MOST_RECORDS: Final = 10_000
"""Maximum number of records that the search for the last record reads. The search begins at the
last record of the chosen queues."""
_log = logging.getLogger(__name__)


class _Last(msgspec.Struct, frozen=True):
    """Last record of a log: its physical offset, its size, and the physical offset of the next
    record."""

    position: int
    size: int
    next_position: int


class _Signs(msgspec.Struct, frozen=True):
    """Digests of all data that determine what a run uploads."""

    settings: str
    store: str
    tier: str
    state: str = ""


class _Seen(msgspec.Struct, frozen=True):
    """Content of SEEN_FILE. The last four fields are from the run's report."""

    format: int
    last: _Last
    signs: _Signs
    queues: int
    skipped: dict[str, str]
    keys_waiting: int = 0
    backup: dict[str, object] = {}


def find_unchanged(options: OffloadOptions, target: TierTarget) -> OffloadReport | None:
    """Return the report of the last run if nothing has changed since, or None."""
    if options.take_over:
        return None
    try:
        seen = read_note(options.state_path / SEEN_FILE, _Seen, "an earlier run")
        if seen is None:
            return None
        if seen.keys_waiting and (
            options.upload_index or target.config.index_file_upload_interval_ms
        ):
            return None  # They may be due.
        return _compare(seen, options, target) if seen.format == _FORMAT else None
    except (OSError, TieredStoreError) as error:
        _log.info("%s: all queues are opened: %s", options.state_path / SEEN_FILE, error)
        return None


def _compare(seen: _Seen, options: OffloadOptions, target: TierTarget) -> OffloadReport | None:
    state = options.state_path
    if _is_in_use(options.store_path) or is_held(state) or is_owned(state):
        return None
    looks: list[tuple[str, Callable[[], str]]] = [
        ("settings", lambda: _sign_settings(options, target)),
        ("state", lambda: _sign_state(options.state_path)),
        ("store", lambda: _sign_store(options, target, seen.last)),
    ]
    provider = target.open_provider(create=False)
    if provider is None:
        return None
    with closing(provider):
        broker = target.config.broker_name
        listed = (
            (one.id.path, int(one.id.type), one.id.base_offset, one.size_bytes)
            for one in provider.list(broker)
        )
        looks.append(("tier", lambda: _sign_tier(provider, broker, listed)))
        for name, look in looks:
            if look() != getattr(seen.signs, name):
                _log.debug("all queues are opened: another %s than before", name)
                return None
        if _is_in_use(options.store_path):
            return None
        usage = read_usage(provider)
    return OffloadReport(
        seen.queues,
        skipped=seen.skipped,
        behind=Behind(0, 0.0, 0, None, ""),
        keys_waiting=seen.keys_waiting,
        backup=seen.backup,
        usage=usage,
    )


@dataclass
class LastLook:
    """Digests that a run computes for the next run. The tier's writer calls `forget` before its
    first write and `see` after the upload. It calls `leave` if everything is uploaded, and `keep`
    after the last change of the metadata."""

    options: OffloadOptions
    target: TierTarget
    provider: SegmentProvider
    metadata: MetadataStore
    _last: _Last | None = None
    _signs: _Signs | None = None
    _report: OffloadReport | None = None

    def __post_init__(self) -> None:
        self._path = self.options.state_path / SEEN_FILE

    def forget(self) -> None:
        """Delete the file of the previous run. Raises Unavailable, Invalid."""
        with wrap_os_errors("delete", self._path):
            FILES.unlink(self._path)

    def see(self, store: ReadOnlyMessageStore, source: OffloadSource) -> None:
        """Compute the digests of the current state. Measure the lag only after this call, so that a
        lag of 0 proves that this state is in the tier."""
        config = self.target.config
        is_in_files = (
            self.provider.capabilities.rewritable
            and config.metadata_service_provider == JSON_METADATA
        )
        if not is_in_files or _is_in_use(self.options.store_path):
            return
        try:
            self._last = _find_last(store, source)
            if self._last is not None:
                segments = (
                    (one.path, int(one.type), one.base_offset, one.size)
                    for one in self.metadata.segments()
                    if one.status != STATUS_DELETED
                )
                self._signs = _Signs(
                    _sign_settings(self.options, self.target),
                    _sign_store(self.options, self.target, self._last),
                    _sign_tier(self.provider, config.broker_name, segments),
                )
        except TieredStoreError as error:
            _log.info("the next run opens all queues again: %s", error)

    def leave(self, report: OffloadReport) -> None:
        """Prepare the file for the next run, including the report."""
        self._report = report

    def keep(self) -> None:
        """Write the file for the next run. An error, such as a full disk, is only logged, because
        the file is optional."""
        last, signs, report = self._last, self._signs, self._report
        if last is None or signs is None or report is None or _is_in_use(self.options.store_path):
            return
        try:
            self.metadata.flush()
            signs = msgspec.structs.replace(signs, state=_sign_state(self.options.state_path))
            rest = report.queues, report.skipped, report.keys_waiting, report.backup
            seen = _Seen(_FORMAT, last, signs, *rest)
            FILES.replace_file(self._path, msgspec.json.encode(seen))
        except (OSError, TieredStoreError) as error:
            _log.info("%s: not written: %s", self._path, error)


def _is_in_use(store: Path) -> bool:
    """Return whether a process owns a store, or has not shut it down cleanly. Such a store may lack
    units."""
    return is_owned(store) or has_abort_file(store)


# The end of the log


def _find_last(store: ReadOnlyMessageStore, source: OffloadSource) -> _Last | None:
    """Return the last record of the log. The search begins at the last record in the consume
    queues."""
    position, size = -1, 0
    for key in source.queues():
        queue = store.find_queue(*key)
        unit = None if queue is None else queue.unit(queue.max_offset - 1)
        if unit is not None and unit[0] > position:
            position, size = unit[:2]
    log = store.commit_log
    for _ in range(_MOST_RECORDS if position >= 0 else 0):
        following = position + size
        rest = -following % log.file_size
        if rest < _HEAD.size:  # The end of a file may be too short for a record.
            following += rest
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


def _read_head(log: CommitLogReader, position: int) -> tuple[int, int]:
    """Return the size and magic of a record, or zeros if no record was written."""
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
    places = [str(path.resolve()) for path in (options.store_path, options.state_path)]
    choice = (*list_names(options.topics), options.recovered)
    return _sign((target.url, places, choice, sorted(fields.items())))


def _sign_store(options: OffloadOptions, target: TierTarget, last: _Last) -> str:
    """Compute the digest of a store: its folder, its topics, its backed-up files, the files of its
    log and its queues, and the last record of the log."""
    root = options.store_path

    def look() -> Iterator[object]:
        yield make_stamp(root.stat())
        topics = read_topics(root)
        yield sorted(topics.attributes.items()), topics.version, sorted(topics.compacted)
        # Backed-up files: offsets move without messages.
        yield sorted(read_broker_config(root, CONFIG_FILES).contents.items())
        config = msgspec.structs.replace(target.config, store_path_root_dir=str(root))
        directory = find_log_directory(config, root)
        yield from _stamp_entries(directory, 1)
        yield from _stamp_entries(root / CONSUME_QUEUE_DIRECTORY, 3)
        yield from _stamp_entries(root / BATCH_DIRECTORY, 1)
        database = find_queue_database(root)
        yield from () if database is None else _stamp_entries(database, 1)
        with closing(PositionalFiles(writable=False)) as files:
            log = ForeignCommitLog(directory, files)
            log.refresh()
            yield bytes(log.get(last.position, last.size) or b"")
            yield _read_head(log, last.next_position)

    with wrap_os_errors("look at", root):
        return _sign(look())


def _sign_tier(
    provider: SegmentProvider, broker: str, segments: Iterable[tuple[str, int, int, int]]
) -> str:
    """Compute the digest of a tier: its last writer, and the name and size of each segment."""
    record = find_layer(provider, WriterRecord)
    writer = None if record is None else record.find_last_writer(broker)
    return _sign((writer, *sorted(one for one in segments if one[3])))


def _sign_state(state: Path) -> str:
    """Compute the digest of the metadata and of the files that wait for the index. The identity
    record is excluded, because a run writes it last."""

    def look() -> Iterator[object]:
        for path in sorted((state / "config").iterdir()):
            if path.name.startswith(Path(STATE_MEMORY).name):
                continue
            yield path.name
            yield path.read_bytes()
        yield from _stamp_entries(state / INDEX_DIRECTORY, 1)

    with wrap_os_errors("look at", state):
        return _sign(look())


def _stamp_entries(directory: Path | str, depth: int) -> Iterator[object]:
    try:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in found:
        yield entry.name, make_stamp(entry.stat())
        if depth > 1 and entry.is_dir():
            yield from _stamp_entries(entry.path, depth - 1)
