"""A tier as a running stream looks at it, again and again: what changed is read, what did not is
remembered."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue, load_catalogue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Severity
from tieredstore.scan.location import TierLocation
from tieredstore.scan.segments.tail import Proof, find_committed_end
from tieredstore.spark.offsets import Incarnation, QueueKey
from tieredstore.spark.selection import key_of
from tieredstore.spark.stream.incarnation import incarnation_at, incarnation_of

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class QueueView:
    """One queue at one moment: messages [least, end) are there, and committed."""

    provider: SegmentProvider
    queue: QueueFiles
    topic_id: int | None
    least: int
    end: int
    _witnesses: dict[int, Incarnation] = field(default_factory=dict)

    def incarnation(self, offset: int) -> Incarnation:
        """Find what the queue is known by at a position."""
        with QueueReader(self.provider, self.queue) as reader:
            return incarnation_at(reader, offset, self.topic_id)

    def incarnation_like(self, then: Incarnation) -> Incarnation:
        """Return what the same message says now, as far as it is still there."""
        witness = then.message
        if witness is None or not self.least <= witness < self.end:
            return Incarnation(self.topic_id)
        if witness not in self._witnesses:
            with QueueReader(self.provider, self.queue) as reader:
                self._witnesses[witness] = incarnation_of(reader, witness, self.topic_id)
        return self._witnesses[witness]

    def log_bytes(self, start: int, end: int) -> int:
        """Commit log bytes of messages [start, end)."""
        if end <= start:
            return 0
        with QueueReader(self.provider, self.queue) as reader:
            return _find_end(reader, end - 1) - _find_start(reader, start)

    def end_within(self, start: int, end: int, size_bytes: int) -> int:
        """Find the largest end of [start, end) whose messages are so many commit log bytes at
        most."""
        with QueueReader(self.provider, self.queue) as reader:
            limit = _find_start(reader, start) + size_bytes
            return bisect.bisect_right(
                range(end), limit, lo=start, key=lambda number: _find_end(reader, number)
            )


class TierView:
    """A connection to a tier, and what was seen through it last. check_bodies: whether a message
    whose body has another CRC counts as not there."""

    def __init__(self, location: TierLocation, *, check_bodies: bool = True) -> None:
        self._location = location
        self._check_bodies = check_bodies
        self._provider = location.connect()
        self._told: set[str] = set()
        self.last_seen: dict[QueueKey, QueueView] = {}

    def list_tier(self) -> TierCatalogue:
        """List what the tier has now. Damage that listing and metadata show is told once, as a
        warning. Raises Corrupt, Unavailable."""
        metadata = self._location.metadata()
        try:
            catalogue = load_catalogue(self._provider, metadata, broker=self._location.broker)
        finally:
            if metadata is not None:
                metadata.close()
        for finding in catalogue.findings:
            text = str(finding)
            if finding.severity is Severity.DAMAGE and text not in self._told:
                self._told.add(text)
                _log.warning("%s", text)
        return catalogue

    def look(
        self,
        catalogue: TierCatalogue,
        queues: Iterable[QueueFiles],
        known: Mapping[QueueKey, int],
    ) -> dict[QueueKey, QueueView]:
        """View those of the queues that have units; `known` are ends that were proven before.
        Raises Corrupt, Unavailable."""
        ids = catalogue.topic_ids or {}
        found: dict[QueueKey, QueueView] = {}
        for queue in queues:
            if not queue.unit_spans() and not queue.lost_units():
                continue  # announced, or expired: where it begins is not known yet
            key = key_of(queue)
            before = self.last_seen.get(key)
            if before is not None and before.queue == queue:
                found[key] = before
            else:
                floor = known.get(key, 0 if before is None else before.end)
                found[key] = self._view(queue, ids.get(queue.topic), floor)
        self.last_seen = found
        return found

    def _view(self, queue: QueueFiles, topic_id: int | None, known_end: int) -> QueueView:
        with QueueReader(self._provider, queue) as reader:
            least = reader.min_offset()
            proof = Proof.BODY if self._check_bodies else Proof.RECORD
            end = find_committed_end(reader, proof, floor=known_end, lists_again=False)
        return QueueView(self._provider, queue, topic_id, min(least, end), end)

    def close(self) -> None:
        self._provider.close()


def _find_start(reader: QueueReader, offset: int) -> int:
    return int(reader.read_units(offset, 1)[0]["physical_offset"])


def _find_end(reader: QueueReader, offset: int) -> int:
    unit = reader.read_units(offset, 1)[0]
    return int(unit["physical_offset"]) + int(unit["size"])
