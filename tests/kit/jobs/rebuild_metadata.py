"""A tier on Posix or as a chunk log, and metadata rebuilt from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.tier.flat import bodies
from tests.kit.tier.wrappers import KeptProvider
from tests.kit.tier.writing import become_writer
from tests.kit.tier_builder import BuiltTier
from tieredstore import registry
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS, MetadataStore
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.metadata.job import run_rebuild_metadata
from tieredstore.jobs.options import RebuildMetadataOptions
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.location import METADATA_FILE, TierLocation, locate
from tieredstore.tier.flat.file_store import FlatFileStore

BROKER, CLUSTER = "broker-a", "cluster-a"
NOW_MS = 1_800_000_000_000
Facts = dict[str, Any]


class World:
    """A tier. `lost` is its writer's state directory, `made` the rebuilt one."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, kind: str = "posix") -> None:
        self.root = root
        self.lost, self.made = root / "lost", root / "made"
        (root / "tier").mkdir(parents=True)
        self.provider: SegmentProvider = PosixProvider(
            root / "tier", CLUSTER, fsync=False, checksums=False
        )
        if kind == "chunks":
            self.provider = ChunkProvider(MemoryObjectClient())
        self.config = StoreConfig(
            broker_name=BROKER,
            broker_cluster_name=CLUSTER,
            commit_log_max_size_bytes=1500,
            consume_queue_max_size_bytes=200,
        )
        self.source = TierLocation(f"file://{root / 'tier'}", self.config, BROKER)
        self.clock = ManualClock(NOW_MS)
        patch.setattr(registry, "segment_provider", lambda _config: KeptProvider(self.provider))

    @contextmanager
    def opened(self, state: Path, *, writing: bool = False) -> Iterator[FlatFileStore]:
        """Open the tier's flat files with the metadata of a state directory."""
        metadata = DefaultMetadataStore(state / METADATA_FILE, BROKER, self.clock)
        metadata.load()
        store = FlatFileStore(self.config, self.provider, metadata, self.clock)
        with ExitStack() as stack:
            stack.callback(metadata.close)
            if writing:
                stack.enter_context(become_writer(store))
            stack.callback(store.close)
            store.load()
            yield store

    def rebuild(
        self, state: Path | None = None, *, journal: Path | None = None, **options: Any
    ) -> dict[str, Any]:
        """Run the job once, in this process."""
        with Journal(journal, {"job": "test"}) as kept:
            run = JobRun("rebuild-metadata", LocalRunner(1), kept)
            report = run_rebuild_metadata(
                run,
                self.source,
                state or self.made,
                RebuildMetadataOptions(**options),
                clock=self.clock,
            )
            kept.finish()
        return report

    def views(self) -> tuple[Facts, Facts]:
        """Return what flat files find in the tier with the lost metadata and with the rebuilt
        metadata."""
        return self.view(self.lost), self.view(self.made)

    def view(self, state: Path) -> Facts:
        with self.opened(state) as store:
            assert not store.broken_queues
            return {
                file.path: {
                    "offsets": (file.consume_queue_min_offset, file.consume_queue_commit_offset),
                    "holes": file.holes,
                    "writable": file.read_only_reason,
                    "messages": bodies(file),
                    "segments": [
                        (
                            str(segment.file.id),
                            segment.commit_position,
                            segment.begin_ms,
                            segment.end_ms,
                        )
                        for segment in (*file.commit_log.segments, *file.consume_queue.segments)
                    ],
                }
                for file in store.files()
                if file.commit_log.segments or file.consume_queue.segments
            }

    def file_of(self, id: SegmentId) -> Path:
        """Return the file of a segment in a Posix tier."""
        found = (self.root / "tier").rglob(f"{id.path}/{id.type.name}/*{id.base_offset:020d}")
        return next(found)

    def last_file(self, path: str, type: FileSegmentType) -> Path:
        """Return the file of the last segment of a path in a Posix tier."""
        found = [item.id for item in self.provider.list(path) if item.id.type is type]
        return self.file_of(max(found, key=lambda name: name.base_offset))


def facts(metadata: MetadataStore) -> Facts:
    """Return the content of the metadata without creation times. The end time of an empty segment
    is its creation time, so it is left out too."""
    return {
        "topics": {
            topic.topic: (
                topic.topic_id,
                topic.status,
                topic.reserve_time_hours,
                {
                    queue.queue_id: (queue.broker_name, queue.min_offset, queue.max_offset)
                    for queue in metadata.queues(topic.topic)
                },
            )
            for topic in metadata.topics()
        },
        "segments": {
            str(entry.id): (
                entry.status,
                entry.size,
                entry.begin_timestamp_ms,
                entry.end_timestamp_ms
                if entry.begin_timestamp_ms != NEVER_WRITTEN_MS
                else "announced",
                entry.seal_timestamp_ms,
            )
            for entry in metadata.segments()
        },
    }


def facts_of(state: Path, broker: str = BROKER) -> Facts:
    """Return the `facts` of the metadata in a state directory."""
    metadata = DefaultMetadataStore(state / METADATA_FILE, broker, read_only=True)
    metadata.load()
    return facts(metadata)


def rebuilt(built: BuiltTier, state: Path, **options: Any) -> dict[str, Any]:
    """Run the job once over a tier of `TierBuilder`. `options` are options of the job, or
    broker.conf keys."""
    run = JobRun("rebuild-metadata", LocalRunner(1), Journal(None, {}))
    keys = {key: str(options.pop(key)) for key in list(options) if key.startswith("tieredStore")}
    source = locate(built.url, properties=keys)
    return run_rebuild_metadata(run, source, state, RebuildMetadataOptions(**options))


def kinds(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the severity and kind of each finding."""
    return [(finding["severity"], finding["kind"]) for finding in report["findings"]]


class Killed(BaseException):
    """The simulated kill of a process."""


def killed_at(call: int, function: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
    """Wrap `function` so that its call number `call` (from 0) kills the process before or after it
    runs."""
    calls = iter(range(1 << 30))

    def wrapped(*arguments: Any, **options: Any) -> Any:
        number = next(calls)
        if number == call and not after:
            raise Killed
        result = function(*arguments, **options)
        if number == call:
            raise Killed
        return result

    return wrapped
