"""Results of a rebuild: the content of the new metadata, and the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import (
    NEVER_WRITTEN_MS,
    STATUS_DELETED,
    FileSegmentMetadata,
    MetadataStore,
    TopicMetadata,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.jobs.metadata.former import (
    NOTHING_FORMER,
    FormerEnds,
    FormerMetadata,
    make_segments,
)
from tieredstore.jobs.metadata.index import FoundIndex, TopicIds
from tieredstore.jobs.metadata.queues import FoundQueue
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.names import INDEX_TOPIC, index_path, queue_path
from tieredstore.scan.findings import Finding, Severity, damage, note


@dataclass(frozen=True, slots=True)
class Found:
    """Results for one broker's part of a tier. `moment_ms`: time of the listing, epoch ms."""

    broker: str
    queues: Sequence[FoundQueue]
    index: Sequence[FoundIndex]
    ids: TopicIds
    moment_ms: int
    former: FormerMetadata = NOTHING_FORMER

    def fill(self, store: MetadataStore) -> None:
        """Put the rebuilt metadata into an empty metadata store, in one write."""
        with store.batch():
            for topic, topic_id in sorted(self.ids.ids.items(), key=lambda item: item[1]):
                _add_topic(store, topic, topic_id)
            if self.ids.highest > max(self.ids.ids.values(), default=-1):
                # The next topic must not get the id of a deleted one, which the index may contain.
                _add_topic(store, INDEX_TOPIC, self.ids.highest)
                store.delete_topic(INDEX_TOPIC)
            for queue in self.queues:
                if queue.segments or _is_unreadable(queue):
                    store.add_queue(queue.topic, queue.queue_id)
            for key in self.former.queues:
                store.add_queue(*key)
            for entry in self.segments():
                store.put_segment(entry)

    def segments(self) -> Iterator[FileSegmentMetadata]:
        """Yield the entries of all segments."""
        for queue in self.queues:
            path = queue_path(self.broker, queue.topic, queue.queue_id)
            if self._is_emptied(queue):
                for segment in queue.segments:
                    yield FileSegmentMetadata(
                        *(path, segment.type, segment.base_offset),
                        status=STATUS_DELETED,
                        create_timestamp_ms=self.moment_ms,
                    )
                continue
            for segment in queue.segments:
                yield FileSegmentMetadata(
                    path,
                    segment.type,
                    segment.base_offset,
                    size=segment.size_bytes,
                    create_timestamp_ms=self.moment_ms,
                    begin_timestamp_ms=segment.begin_ms,
                    # Java expires segments without an end time.
                    end_timestamp_ms=min(segment.end_ms, self.moment_ms)
                    if segment.begin_ms == NEVER_WRITTEN_MS
                    else segment.end_ms,
                )
        ends = dict(self.former.queues)
        for queue in self.queues:
            former = ends.pop(queue.key, None)
            if _is_unreadable(queue) or (former is not None and self._is_short(queue)):
                ends[queue.key] = _pass_by(queue.listed, former or FormerEnds(0, 0))
        yield from make_segments(self.broker, ends, self.moment_ms)
        for index in self._index():
            yield self._index_entry(index)

    def _is_short(self, queue: FoundQueue) -> bool:
        """Return whether the former metadata lists messages after the last valid message of a
        queue. New messages then continue after the listed ones."""
        former = self.former.queues.get(queue.key)
        return former is not None and former.consume_queue > queue.max_offset * UNIT_SIZE

    def _is_emptied(self, queue: FoundQueue) -> bool:
        """Return whether an interrupted deletion has removed all units of a queue, so that its
        commit log has to be deleted too. False if the units are damaged or lost."""
        has_units = queue.max_offset or queue.listed.consume_queue
        return not has_units and self._is_short(queue) and queue.key not in self.former.filled

    def _index(self) -> list[FoundIndex]:
        """Return the complete index segments, and the last one even if it is incomplete, because
        the next upload completes it."""
        last = max((index.base_offset for index in self.index), default=0)
        return [i for i in self.index if i.damage is None or i.base_offset == last]

    def _index_entry(self, index: FoundIndex) -> FileSegmentMetadata:
        name = self._index_id(index)
        entry = FileSegmentMetadata(
            name.path,
            name.type,
            name.base_offset,
            create_timestamp_ms=self.moment_ms,
            end_timestamp_ms=self.moment_ms,
        )
        if index.damage is None:
            # Nothing is stored after the upload began. Queries by time rely on that.
            latest_ms = min(index.latest_ms, self.moment_ms)
            entry.size = index.size_bytes
            entry.create_timestamp_ms = latest_ms
            entry.begin_timestamp_ms = index.begin_ms
            entry.end_timestamp_ms = index.end_ms or latest_ms
        return entry

    def _index_id(self, index: FoundIndex) -> SegmentId:
        path = index_path(self.broker)
        return SegmentId(path, FileSegmentType.INDEX, index.base_offset)

    def _make_short_finding(self, key: QueueKey, max_offset: int) -> Finding:
        end = self.former.queues[key].consume_queue // UNIT_SIZE
        return damage(
            "queue-short",
            f"{key.topic}/{key.queue_id}: the tier lacks messages that a backup of its metadata "
            "records. New ones continue behind them",
            expected=f"messages up to queue offset {end}",
            found=f"messages up to queue offset {max_offset}",
        )

    # The report

    def report(self, more: Iterable[Finding]) -> dict[str, object]:
        """Return the fields of the JSON report. `more`: findings of the listing."""
        findings = [*more, *self._findings()]
        by_topic: dict[str, list[FoundQueue]] = defaultdict(list)
        for queue in self.queues:
            by_topic[queue.topic].append(queue)
        assigned = set(self.ids.assigned)
        entries = list(self.segments())
        return {
            "topics": len(by_topic),
            "queues": sum(bool(queue.segments) for queue in self.queues),
            "segments": len(entries),
            "index_segments": sum(e.type is FileSegmentType.INDEX for e in entries),
            "size_bytes": sum(entry.size for entry in entries),
            "messages": sum(queue.max_offset - queue.min_offset for queue in self.queues),
            "topic_ids_assigned": len(assigned),
            "damage": sum(finding.severity is Severity.DAMAGE for finding in findings),
            "notes": sum(finding.severity is Severity.NOTE for finding in findings),
            "found_topics": [
                {
                    "topic": topic,
                    "topic_id": self.ids.ids[topic],
                    "id_from": "assigned" if topic in assigned else "index",
                    "queues": [
                        {
                            "queue_id": queue.queue_id,
                            "min_offset": queue.min_offset,
                            "max_offset": queue.max_offset,
                            "size_bytes": sum(s.size_bytes for s in queue.segments),
                        }
                        for queue in queues
                    ],
                }
                for topic, queues in sorted(by_topic.items())
            ],
            "findings": [_record(finding) for finding in findings],
        }

    def _findings(self) -> Iterator[Finding]:
        for queue in self.queues:
            if self._is_emptied(queue):
                text = f"{queue.topic}/{queue.queue_id}: its messages were being deleted"
                yield note("queue-emptied", text)
                continue
            yield from queue.findings
            if self._is_short(queue):
                yield self._make_short_finding(queue.key, queue.max_offset)
        present = {queue.key for queue in self.queues}
        for key in sorted(self.former.filled & self.former.queues.keys() - present):
            yield self._make_short_finding(key, 0)
        announced = {index.base_offset for index in self._index()}
        for index in self.index:
            if index.damage is None:
                continue
            name = self._index_id(index)
            if index.base_offset in announced:
                yield note("index-torn", f"to be rewritten: {index.damage}", segment=name)
            else:
                yield damage("index-damaged", f"left out: {index.damage}", segment=name)
        for topic in self.ids.assigned:
            yield note(
                "topic-id-assigned",
                f"topic {topic!r}: no key of its messages was found in the index. It has a new id",
                found=str(self.ids.ids[topic]),
            )
        for topic in self.ids.disputed:
            yield note(
                "topic-id-disputed",
                f"topic {topic!r}: the index has several ids for it, most likely since it was "
                "deleted and recreated",
                found=str(self.ids.ids[topic]),
            )


def _is_unreadable(queue: FoundQueue) -> bool:
    """Return whether a queue has units but no segment to register. The metadata then omits the
    queue, and new messages continue after its last unit."""
    return not queue.segments and queue.listed.consume_queue > 0


def _pass_by(listed: FormerEnds, former: FormerEnds) -> FormerEnds:
    """Return the offsets at which a queue continues after the loss of its last messages. They are
    after all existing bytes of its files and after the `former` ends. A gap of one unit lets
    readers ignore the existing invalid units."""
    units = listed.consume_queue + UNIT_SIZE - listed.consume_queue % UNIT_SIZE
    return FormerEnds(*map(max, listed._replace(consume_queue=units), former))


def _add_topic(store: MetadataStore, topic: str, topic_id: int) -> None:
    added = store.add_topic(topic)
    if added.topic_id != topic_id:
        store.update_topic(TopicMetadata(topic_id, topic))


def _record(finding: Finding) -> dict[str, object]:
    return {
        "severity": finding.severity.value,
        "kind": finding.kind,
        "segment": None if finding.segment is None else str(finding.segment),
        "position": finding.position,
        "message": finding.message,
        "expected": finding.expected,
        "found": finding.found,
    }
