"""Checks every byte of a tier that its formats let one check, and reports all damage.

For each queue: segments follow each other without hole or overlap; each consume queue unit names a
whole record with its size, magic, queue offset, queue id, topic, physical offset, inner lengths and
body CRC; its tags code fits the record's TAGS; bytes that no unit names are looked at; sizes and
times in the metadata are those of the contents. Index segments: `verify_index`. What RocketMQ's
formats keep only once (flags, born time, hosts, other properties) cannot be checked; `docs/cli.md`
lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
from tieredstore.scan.findings import Finding, Report, Severity, damage
from tieredstore.scan.verify_index import IndexVerifier
from tieredstore.scan.verify_queue import QueueVerifier


@dataclass(slots=True)
class VerifyReport:
    """How much was checked and found good (messages, bytes, index items), and how much was not."""

    queues: int = 0
    messages: int = 0
    message_bytes: int = 0
    segments: int = 0
    index_segments: int = 0
    index_items: int = 0
    damage: int = 0
    notes: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def count(self, finding: Finding) -> None:
        self.kinds[finding.kind] = self.kinds.get(finding.kind, 0) + 1
        if finding.severity is Severity.DAMAGE:
            self.damage += 1
        else:
            self.notes += 1


Progress = Callable[[str, int], None]
"""Called with a path and the bytes just done there."""


def _ignore(path: str, count_bytes: int) -> None:
    del path, count_bytes


def verify(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    report: Report,
    *,
    queues: list[QueueFiles] | None = None,
    with_index: bool = True,
    progress: Progress = _ignore,
) -> VerifyReport:
    """Check `queues` (all by default) and the index segments; findings go to `report` as they are
    found. Memory stays bounded whatever the tier's size. Raises Unavailable."""
    result = VerifyReport()

    def on_finding(finding: Finding) -> None:
        result.count(finding)
        report(finding)

    chosen = list(catalogue.queues) if queues is None else queues
    paths = {queue.path for queue in chosen}
    for finding in catalogue.findings:
        if queues is None or finding.segment is None or finding.segment.path in paths:
            on_finding(finding)
    for finding in _check_tables(catalogue, chosen):
        on_finding(finding)
    for queue in chosen:
        checked = QueueVerifier(provider, catalogue, queue, on_finding, progress).run()
        result.queues += 1
        result.messages += checked.messages
        result.message_bytes += checked.message_bytes
        result.segments += len(queue.commit_log) + len(queue.consume_queue)
    if with_index:
        verifier = IndexVerifier(provider, catalogue, on_finding, progress)
        for extents in catalogue.indexes.values():
            result.index_segments += len(extents)
            result.index_items += verifier.run(extents)
    return result


def _check_tables(catalogue: TierCatalogue, queues: list[QueueFiles]) -> Iterator[Finding]:
    """Topics and queues of the tier have their entries in the metadata."""
    topics, known = catalogue.topics, catalogue.known_queues
    if topics is None or known is None:
        return
    owners: dict[int, str] = {}
    for topic in topics.values():
        other = owners.setdefault(topic.topic_id, topic.topic)
        if other != topic.topic:
            yield damage(
                "metadata-topic-id",
                f"topics {other!r} and {topic.topic!r} have the same topic id {topic.topic_id}",
            )
    for queue in queues:
        if queue.topic not in topics:
            yield damage(
                "metadata-topic-missing",
                f"{queue.path}: the metadata has segments of topic {queue.topic!r}, but no such "
                "topic",
            )
        elif (queue.topic, queue.queue_id) not in known:
            yield damage(
                "metadata-queue-missing",
                f"{queue.path}: the metadata has segments of the queue, but no such queue",
            )
