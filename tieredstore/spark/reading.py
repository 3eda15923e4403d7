"""Reads of the partition of a task. They yield batches for Spark, or raise a clear error if the
data differ from the plan."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

import pyarrow as pa

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.disk.errors import classify_os_error
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.scan.arrow.join import join_small_batches
from tieredstore.scan.arrow.read import arrow_batches
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.expired import find_lost_segments, first_alive, list_now
from tieredstore.scan.findings import Finding, Severity, raise_on_damage
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.options import ReadOptions
from tieredstore.spark.options import SourceOptions
from tieredstore.spark.partitions import TieredPartition
from tieredstore.spark.schema import Shape
from tieredstore.tier_url import parse_tier_url

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PartitionReader:
    """Reader of partitions for any process. Picklable, because it has no connection.
    `skips_damage`: omit damaged messages, log a warning, and write a file to `report_path` if it is
    set. `fail_on_data_loss`: raise an error if messages have expired since the plan."""

    location: TierLocation
    shape: Shape
    options: ReadOptions
    fail_on_data_loss: bool
    skips_damage: bool
    report_path: str | None

    @classmethod
    def of(cls, options: SourceOptions, shape: Shape) -> Self:
        """Return the reader of a query. Raises Invalid, Unavailable."""
        loss, damage = options.fail_on_data_loss, options.skips_damage
        return cls(options.tier(), shape, options.read, loss, damage, options.corrupt_report_path)

    def batches(self, partition: TieredPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a partition. Raises Corrupt, Invalid for lost data, Unavailable."""
        with closing(self.location.connect()) as provider:
            parts = (self._range(provider, scan_range) for scan_range in partition.ranges)
            batches = chain.from_iterable(parts)
            yield from join_small_batches(batches, self.options.batch_bytes)

    def _range(self, provider: SegmentProvider, wanted: ScanRange) -> Iterator[pa.RecordBatch]:
        names = self.shape.read
        place = names.index("queue_offset")
        skipped: list[Finding] = []

        def keep(finding: Finding) -> None:
            if finding.severity is Severity.DAMAGE:
                skipped.append(finding)

        tell = keep if self.skips_damage else raise_on_damage
        at, rows, lost = wanted.from_offset, 0, 0
        rest = wanted
        while rest.count > 0:
            try:
                for batch in arrow_batches(provider, rest, names, self.options, on_finding=tell):
                    at = batch.column(place)[-1].as_py() + 1
                    rows += batch.num_rows
                    yield self.shape.batch(batch)
                break
            except (Corrupt, Unavailable) as error:
                now = list_now(provider, wanted.queue)
                first = min(first_alive(provider, now, wanted.until_offset), wanted.until_offset)
                if first <= at or not find_lost_segments(rest.queue, now):
                    raise
                lost += first - at
                if self.fail_on_data_loss:
                    raise data_loss(wanted.queue, at, first, "while they were read") from error
                warn_of_loss(wanted.queue, at, first)
                rest = replace(wanted, queue=now, from_offset=first)
                at = first
        if skipped:
            self._tell(wanted, skipped, wanted.count - rows - lost)

    def _tell(self, scan_range: ScanRange, skipped: list[Finding], left_out: int) -> None:
        queue, first, until = scan_range.queue, scan_range.from_offset, scan_range.until_offset
        choices = (
            self.options.tags, self.options.keys, scan_range.since_ms, scan_range.until_ms
        )  # fmt: skip
        filtered = any(choice is not None for choice in choices)
        messages = "" if filtered else f", {left_out} messages left out"
        _log.warning(
            "onDamage=skip: %s [%d, %d): %d pieces of damage%s; the first: %s",
            queue.path, first, until, len(skipped), messages, skipped[0],
        )  # fmt: skip
        if self.report_path is not None:
            lines = [_line(queue, finding) for finding in skipped]
            # Another attempt at the same range writes the same file.
            name = hashlib.sha256(f"{queue.path} {first} {until}".encode()).hexdigest()[:24]
            _write(self.report_path, f"{name}.json", "".join(lines))


def data_loss(queue: QueueFiles, wanted: int, first: int, when: str) -> Invalid:
    """Return the error for messages that have expired before the read."""
    text = (
        f"{queue.path}: messages {wanted} to {first - 1} expired {when}: wanted offset {wanted}, "
        f"min offset {first}. failOnDataLoss=false continues without them"
    )
    return Invalid(text, topic=queue.topic, queue_id=queue.queue_id, offset=wanted)


def warn_of_loss(queue: QueueFiles, wanted: int, first: int) -> None:
    _log.warning(
        "failOnDataLoss=false: %s: %d messages expired before they were read, %d to %d",
        queue.path, first - wanted, wanted, first - 1,
    )  # fmt: skip


def _line(queue: QueueFiles, finding: Finding) -> str:
    row = {
        "topic": queue.topic,
        "broker": queue.broker,
        "queue_id": queue.queue_id,
        "queue_offset": finding.queue_offset,
        "segment": None if finding.segment is None else str(finding.segment),
    }
    names = ("position", "kind", "message", "expected", "found")
    return json.dumps(row | {name: getattr(finding, name) for name in names}) + "\n"


def _write(folder: str, name: str, text: str) -> None:
    """Write a file to a folder that all executors can access: a path or, with fsspec, a URL."""
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
        raise classify_os_error(error)(
            f"corruptReportPath {folder}: {error}", path=folder
        ) from error
