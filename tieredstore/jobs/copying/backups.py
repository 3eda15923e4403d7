"""Copy of everything else that a `restore` needs: the ends of expired queues, the runs of lite
topics, and the backups. The backup of topics, groups and offsets is copied from the origin. The
backup of the metadata is made from the metadata of the copy."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from tieredstore.config import StoreConfig
from tieredstore.contracts.backups import BackupKind, BackupName, BackupPlace, RangedBackups
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import (
    STATUS_DELETED,
    FileSegmentMetadata,
    MetadataStore,
    TopicMetadata,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider
from tieredstore.contracts.tier_identity import IdentifiedTier, WriterKind
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Fenced, TieredStoreError
from tieredstore.jobs.copying.origin import CopyOrigin
from tieredstore.jobs.copying.target import CopyTarget
from tieredstore.jobs.metadata.former import FormerEnds, FormerMetadata, make_segments
from tieredstore.jobs.options import list_names
from tieredstore.jobs.restoring.backups import find_backup, find_former_metadata
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.lite_runs import (
    UNIT_DTYPE,
    CoveredRange,
    RunNotes,
    encode_run,
    find_deletions,
    merge_contents,
    sort_units,
)
from tieredstore.message.names import queue_path
from tieredstore.scan.location import load_config
from tieredstore.tier.backup import TierBackup
from tieredstore.tier.lite.merging import ChosenRuns, count_parts, find_key_range, merge_part
from tieredstore.tier.lite.runs import LiteRun, join_covered, load_runs
from tieredstore.tier.writing import TierWriter

_log = logging.getLogger(__name__)


@dataclass
class BackupCopy:
    """Copies the backups of one broker and the ends of its queues. `config`: configuration of the
    target. `topics`: shell patterns of the chosen topics."""

    origin: SegmentProvider
    origin_metadata: MetadataStore | None
    tier: CopyOrigin
    target: CopyTarget
    config: StoreConfig
    topics: str | Sequence[str]

    def copy(self, writer: TierWriter) -> str | None:
        """Copy what the target lacks. Call this after the segments are copied. Return the reason if
        an error prevents backups. Raises Fenced."""
        try:
            names = self._list_kinds()
            former = self._find_former()
            expired = self._find_expired(former)
            self._record_ends(writer, former, expired)
            if not self._has_store():
                self._copy_light_runs(writer)
                if names or expired:
                    self._back_up(writer)
        except Fenced:
            raise
        except TieredStoreError as error:
            _log.warning("the copy has no backups: %s", error)
            return f"the backups of topics, groups, offsets and metadata: {error}"
        return None

    def _list_kinds(self) -> set[BackupKind]:
        place = find_layer(self.origin, BackupPlace)
        names = () if place is None else place.list_backups(self.tier.broker)
        return {name.kind for name in names} & {BackupKind.CONFIG, BackupKind.METADATA}

    def _find_former(self) -> FormerMetadata:
        """Return the ends of the origin's queues, from the origin's state or newest backup."""
        broker = self.tier.broker
        if self.origin_metadata is not None:
            found = FormerMetadata.of(self.origin_metadata, broker, 0)
        else:
            config = msgspec.structs.replace(self.config, broker_name=broker)
            found, _, _ = find_former_metadata(self.origin, config)
        return found.drop_deleted(self.tier.deleted)

    def _find_expired(self, former: FormerMetadata) -> dict[QueueKey, FormerEnds]:
        """Return the ends of the chosen queues without messages in the origin."""
        there = {(queue.topic, queue.queue_id) for queue in self.tier.queues}
        patterns = list_names(self.topics)
        return {
            key: end
            for key, end in former.queues.items()
            if key not in there
            and (not patterns or any(fnmatch.fnmatchcase(key.topic, p) for p in patterns))
        }

    def _record_ends(
        self, writer: TierWriter, former: FormerMetadata, expired: Mapping[QueueKey, FormerEnds]
    ) -> None:
        """Record the end offset of each queue without messages in origin and target, as an empty
        segment in the target's metadata. Such entries are deleted when the queue has messages
        again."""
        metadata, broker = self.target.metadata, self.tier.broker
        ends = {key: end for key, end in expired.items() if not self._list_entries(key)}
        stale = [
            entry.id
            for queue in self.tier.queues
            for entry in self._list_empty(QueueKey(queue.topic, queue.queue_id))
        ]
        if not ends and not stale:
            return
        writer.check()
        with metadata.batch():
            for segment in stale:
                metadata.delete_segment(segment)
            for topic in sorted({key.topic for key in ends}, key=former.topic_ids.__getitem__):
                self._add_topic(topic, former.topic_ids[topic])
            for key in ends:
                metadata.add_queue(*key)
            for entry in make_segments(broker, ends, self.target.clock.now_ms()):
                metadata.put_segment(entry)

    def _add_topic(self, topic: str, topic_id: int) -> None:
        """Add a topic with its id in the origin, unless another topic has this id."""
        metadata = self.target.metadata
        if metadata.topic(topic) is not None:
            return
        taken = {entry.topic_id for entry in metadata.topics()}
        if metadata.add_topic(topic).topic_id != topic_id and topic_id not in taken:
            metadata.update_topic(TopicMetadata(topic_id, topic))

    def _list_entries(self, key: QueueKey) -> list[FileSegmentMetadata]:
        path = queue_path(self.tier.broker, *key)
        return [it for it in self.target.metadata.segments(path) if it.status != STATUS_DELETED]

    def _list_empty(self, key: QueueKey) -> list[FileSegmentMetadata]:
        """Return a queue's metadata entries for empty segments that begin before a segment with
        messages."""
        entries = self._list_entries(key)
        last = {
            kind: max((it.base_offset for it in entries if it.size and it.type is kind), default=0)
            for kind in FileSegmentType
        }
        return [it for it in entries if not it.size and it.base_offset < last[it.type]]

    def _copy_light_runs(self, writer: TierWriter) -> None:
        """Write the origin's runs of lite topics as one run, because only runs show which lite
        topics are deleted. Messages that the target lacks are omitted, except their deletions. The
        parents keep their ids."""
        place, broker = find_layer(self.target.provider, RangedBackups), self.tier.broker
        known = load_runs(self.target.provider, broker).directory.runs
        whole, covered, deleted = self._choose_light_runs()
        before = join_covered(one for run in known for one in run.notes.covered)
        is_known = find_deletions(run.names for run in known) == deleted and before == covered
        if place is None or is_known:
            return
        parts = count_parts(whole)
        begins = {(one.topic_id, one.queue_id): 0 for one in covered}
        names = [BackupName(writer.epoch_number, 1 + n, BackupKind.LITE) for n in range(parts)]
        merged = tuple(str(run.name) for run in known)
        chosen = ChosenRuns(whole, 1, keeps_deleted=True)
        writer.check()
        for part, name in enumerate(names):
            low, high = find_key_range(part, parts)
            here = {key: end for key, end in deleted.items() if low <= key < high}
            only = sort_units(np.zeros(0, np.uint64), np.zeros(0, UNIT_DTYPE), here)
            content = merge_contents([merge_part(chosen, begins, part, parts), only])
            notes = RunNotes(1, str(names[0]), part, parts)
            if not part:
                notes = msgspec.structs.replace(notes, covered=covered, merged=merged)
            place.write_backup(broker, name, encode_run(notes, content))
        writer.confirm()
        place.delete_backups(broker, [run.name for run in known])

    def _choose_light_runs(
        self,
    ) -> tuple[list[LiteRun], tuple[CoveredRange, ...], dict[int, int]]:
        """Return the origin's runs whose messages the target has, the ranges that they cover, and
        the deletions of all runs by key."""
        groups = load_runs(self.origin, self.tier.broker).directory.list_groups()
        ids = {topic.topic: topic.topic_id for topic in self.target.metadata.topics()}
        ranges: list[CoveredRange] = []
        whole: list[LiteRun] = []
        for group in groups.values():
            covered = [
                one
                for run in group
                for one in run.notes.covered
                if ids.get(one.topic) == one.topic_id
            ]
            if all(one.end <= self._find_end(QueueKey(one.topic, one.queue_id)) for one in covered):
                ranges += covered
                whole += group
        names = (run.names for group in groups.values() for run in group)
        return whole, join_covered(ranges), find_deletions(names)

    def _find_end(self, key: QueueKey) -> int:
        """Return the queue offset after the last message of a queue in the target."""
        units = (it for it in self._list_entries(key) if it.type is FileSegmentType.CONSUME_QUEUE)
        return max((it.base_offset + it.size for it in units), default=0) // UNIT_SIZE

    def _has_store(self) -> bool:
        """Return whether a store, and not only a copy, has written to the target. The store's
        backups are then newer than those of the origin, and must not be replaced."""
        place = find_layer(self.target.provider, IdentifiedTier)
        if place is None:
            return False
        mark = place.read_mark(self.tier.broker, 1)
        kinds = {writer.kind for writer in mark.writers.values() if writer is not None}
        return WriterKind.STORE in kinds or mark.older_store > 0

    def _back_up(self, writer: TierWriter) -> None:
        state = self.target.state
        if state is None:
            return
        found = find_backup(self.origin, self.tier.broker, BackupKind.CONFIG)
        contents: Mapping[str, bytes] = {} if found is None else found.archive.contents
        notes = {} if found is None else found.archive.manifest.notes
        config = msgspec.structs.replace(
            load_config(None, properties=notes).config,
            broker_name=self.config.broker_name,
            broker_cluster_name=self.config.broker_cluster_name,
            backup_interval_ms=self.config.backup_interval_ms,
        )
        backup = TierBackup(
            *(config, self.target.provider, state, self.target.clock),
            self.target.metadata.flush,
            lambda: contents,
        )
        backup.become_writer(writer)
        backup.run_once(is_last=True)
