"""What a task does with its partition: batches for Spark, and a clear word where data is not as it
was planned."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.scan.arrow.join import join_small_batches
from tieredstore.scan.arrow.read import arrow_batches
from tieredstore.scan.catalogue import QueueFiles, list_again
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding, OnFinding, Severity, raise_on_damage
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.options import ReadOptions
from tieredstore.spark.partitions import TieredPartition
from tieredstore.spark.schema import Shape
from tieredstore.tier_url import parse_tier_url

_log = logging.getLogger(__name__)
_GONE = frozenset({"units-missing", "record-missing", "record-expired", "bytes-missing"})
"""Kinds of damage that bytes which expired meanwhile look like."""


@dataclass(frozen=True, slots=True)
class PartitionReader:
    """Reads partitions in any process. Picklable; it holds no connection.

    skip_corrupt: leave damaged messages out, with a warning and, where there is a folder for
    reports, a file that tells of them. fail_on_data_loss: messages that expired between plan and
    read are an error, else a warning.
    """

    location: TierLocation
    shape: Shape
    options: ReadOptions
    fail_on_data_loss: bool
    skip_corrupt: bool
    report_path: str | None

    def batches(self, partition: TieredPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a partition. Raises Corrupt, Invalid for lost data, Unavailable."""
        provider = self.location.connect()
        try:
            batches = (
                batch
                for scan_range in partition.ranges
                for batch in self._range(provider, scan_range)
            )
            yield from join_small_batches(batches, self.options.batch_bytes)
        finally:
            provider.close()

    def _range(self, provider: SegmentProvider, wanted: ScanRange) -> Iterator[pa.RecordBatch]:
        names = self.shape.read
        place = names.index("queue_offset")
        skipped: list[Finding] = []
        at, rows, lost = wanted.from_offset, 0, 0
        rest = wanted
        while rest.count > 0:
            on_finding = self._make_on_finding(provider, wanted.queue, skipped)
            try:
                for batch in arrow_batches(
                    provider, rest, names, self.options, on_finding=on_finding
                ):
                    at = batch.column(place)[-1].as_py() + 1
                    rows += batch.num_rows
                    yield self.shape.batch(batch)
                break
            except (Corrupt, Unavailable) as error:
                now = list_again(provider, _drop_segments(wanted.queue))
                first = min(first_alive(provider, now, wanted.until_offset), wanted.until_offset)
                if first <= at or not _has_lost_segments(rest.queue, now):
                    raise
                lost += first - at
                if self.fail_on_data_loss:
                    raise data_loss(wanted.queue, at, first, "while they were read") from error
                warn_of_loss(wanted.queue, at, first)
                rest = replace(wanted, queue=now, from_offset=first)
                at = first
        if skipped:
            self._tell(wanted, skipped, wanted.count - rows - lost)

    def _make_on_finding(
        self, provider: SegmentProvider, queue: QueueFiles, skipped: list[Finding]
    ) -> OnFinding:
        """A callback that keeps damage aside, but for messages that have expired."""
        if not self.skip_corrupt:
            return raise_on_damage
        first: int | None = None

        def on_finding(finding: Finding) -> None:
            nonlocal first
            if finding.severity is Severity.NOTE:
                return
            if finding.kind in _GONE and finding.queue_offset is not None:
                if first is None:
                    now = list_again(provider, _drop_segments(queue))
                    first = 0
                    if _has_lost_segments(queue, now):
                        first = first_alive(provider, now, finding.queue_offset + 1)
                if finding.queue_offset < first:
                    raise finding.to_error()
            skipped.append(finding)

        return on_finding

    def _tell(self, scan_range: ScanRange, skipped: list[Finding], left_out: int) -> None:
        queue, first, until = scan_range.queue, scan_range.from_offset, scan_range.until_offset
        choices = (
            self.options.tags, self.options.keys, scan_range.since_ms, scan_range.until_ms
        )  # fmt: skip
        filtered = any(choice is not None for choice in choices)
        messages = "" if filtered else f", {left_out} messages left out"
        _log.warning(
            "corruptRecords=skip: %s [%d, %d): %d pieces of damage%s; the first: %s",
            queue.path, first, until, len(skipped), messages, skipped[0],
        )  # fmt: skip
        if self.report_path is not None:
            lines = [_line(queue, finding) for finding in skipped]
            # Another attempt at the same range writes the same file.
            name = hashlib.sha256(f"{queue.path} {first} {until}".encode()).hexdigest()[:24]
            _write(self.report_path, f"{name}.json", "".join(lines))


def first_alive(provider: SegmentProvider, queue: QueueFiles, when_empty: int) -> int:
    """Find the first queue offset that the queue still has; `when_empty` for one with nothing
    left."""
    if not queue.commit_log or not queue.consume_queue:
        return when_empty
    with QueueReader(provider, queue) as reader:
        return reader.min_offset()


def _has_lost_segments(planned: QueueFiles, now: QueueFiles) -> bool:
    """Whether segments have gone since a range was planned. What was not there then is damage, and
    did not expire meanwhile."""
    left = {extent.id for extent in (*now.commit_log, *now.consume_queue)}
    return any(
        extent.size_bytes and extent.id not in left
        for extent in (*planned.commit_log, *planned.consume_queue)
    )


def data_loss(queue: QueueFiles, wanted: int, first: int, when: str) -> Invalid:
    """Make the error of a reader that comes too late."""
    return Invalid(
        f"{queue.path}: messages {wanted} to {first - 1} expired {when}: wanted offset {wanted}, "
        f"min offset {first}; failOnDataLoss=false goes on without them",
        topic=queue.topic,
        queue_id=queue.queue_id,
        offset=wanted,
    )


def warn_of_loss(queue: QueueFiles, wanted: int, first: int) -> None:
    _log.warning(
        "failOnDataLoss=false: %s: %d messages expired before they were read, %d to %d",
        queue.path, first - wanted, wanted, first - 1,
    )  # fmt: skip


def _drop_segments(queue: QueueFiles) -> QueueFiles:
    return QueueFiles(queue.broker, queue.topic, queue.queue_id)


def _line(queue: QueueFiles, finding: Finding) -> str:
    return (
        json.dumps(
            {
                "topic": queue.topic,
                "broker": queue.broker,
                "queue_id": queue.queue_id,
                "queue_offset": finding.queue_offset,
                "segment": None if finding.segment is None else str(finding.segment),
                "position": finding.position,
                "kind": finding.kind,
                "message": finding.message,
                "expected": finding.expected,
                "found": finding.found,
            }
        )
        + "\n"
    )


def _write(folder: str, name: str, text: str) -> None:
    """A file in a folder that all executors reach, a path or, with fsspec, a URL."""
    from pyarrow import fs

    try:
        files, path = fs.LocalFileSystem(), folder
        if "://" in folder:
            place = parse_tier_url(folder)
            path = place.path
            if place.scheme != "file":
                files, path = fs.FileSystem.from_uri(folder)
        files.create_dir(path, recursive=True)
        with files.open_output_stream(f"{path}/{name}") as file:
            file.write(text.encode())
    except OSError as error:
        raise Unavailable(f"corruptReportPath {folder}: {error}", path=folder) from error
