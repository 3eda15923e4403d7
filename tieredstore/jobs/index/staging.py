"""Files that tasks of a job exchange between its stages, on any machine. The location is
`file:///dir` or `s3://bucket/prefix`, as for a tier, and the same provider opens it. Each attempt
at a task has its own file names."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tieredstore import registry
from tieredstore.contracts.segment import (
    Buffer,
    FileSegmentType,
    SegmentId,
    SegmentProvider,
    Written,
)
from tieredstore.disk.user_folders import make_temporary_folder
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.jobs.journals import staging_beside
from tieredstore.jobs.run import JobRun
from tieredstore.scan.location import TierLocation
from tieredstore.tier_url import as_url, show_url

_PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A staged file. `number`: random number of the attempt that wrote it."""

    path: str
    number: int
    size_bytes: int

    @property
    def id(self) -> SegmentId:
        return SegmentId(self.path, FileSegmentType.INDEX, self.number)


@dataclass(frozen=True, slots=True)
class Staging:
    """Location of a job's staged files. `folder`: the job's own folder there. Picklable."""

    location: TierLocation
    folder: str

    def write(self, provider: SegmentProvider, name: str, blocks: Iterable[Buffer]) -> StagedFile:
        """Write a new file with these bytes. Raises Unavailable."""
        path = f"{self.folder}/{name}/0"
        number = uuid.uuid4().int >> 66
        segment = provider.open(SegmentId(path, FileSegmentType.INDEX, number))
        size = 0
        try:
            for piece in _pieces(blocks):
                result = segment.write(size, [piece])
                if not isinstance(result, Written):
                    raise Unavailable(f"staging {segment.id}: not written at {size}: {result}")
                size += len(piece)
        finally:
            segment.close()
        return StagedFile(path, number, size)

    def remove(self) -> None:
        """Delete all files of the job. Raises Unavailable."""
        with closing(self.location.connect()) as provider:
            for listing in list(provider.list(self.folder)):
                provider.open(listing.id, listing).delete()


def _pieces(blocks: Iterable[Buffer]) -> Iterator[bytes]:
    """Join small blocks of bytes, because an object store creates one object per block."""
    waiting = bytearray()
    for block in blocks:
        waiting += block
        if len(waiting) >= _PIECE_BYTES:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


def read_staged(provider: SegmentProvider, file: StagedFile, position: int, length: int) -> Buffer:
    """Read exactly `length` bytes. Raises Invalid if the file is gone, and Unavailable."""
    segment = provider.open(file.id)
    try:
        return segment.read(position, length)
    except Corrupt as error:
        raise Invalid(
            f"staging {provider.url}: files of an earlier run of this job are gone "
            f"({error}). Remove the job's journal to start from the beginning",
            path=str(file.id),
        ) from error
    finally:
        segment.close()


@dataclass(frozen=True, slots=True)
class StagedIndex:
    """Index file in a staging location or in a tier, with the methods of `UploadableIndex`."""

    file: StagedFile
    begin_ms: int
    end_ms: int
    provider: SegmentProvider = field(compare=False)

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes

    def pieces(self, start: int, length: int) -> Iterator[tuple[int, Buffer]]:
        """Yield pieces like `UploadableIndex.pieces`. Raises Invalid if the file is gone."""
        for position in range(start, self.size_bytes, length):
            count = min(length, self.size_bytes - position)
            yield position, read_staged(self.provider, self.file, position, count)


@contextmanager
def staging_of(run: JobRun, location: TierLocation, url: str | None) -> Iterator[Staging]:
    """Yield the staging location of a run: `url`, or a folder next to the run's journal. On
    success, the job's files are deleted. After an error they stay for the next run, unless there is
    no journal. Raises Invalid."""
    journal = run.journal.path
    folder = uuid.uuid4().hex if journal is None else journal.stem
    with ExitStack() as stack:
        local: Path | None = None
        if url is None and journal is None:
            local = stack.enter_context(make_temporary_folder(f"{run.name}-"))
        elif url is None:
            assert journal is not None
            local = staging_beside(journal)
        if local is not None:
            url = local.as_uri()
        assert url is not None
        url = as_url(url)
        if url.rstrip("/") == location.url.rstrip("/"):
            raise Invalid(f"staging {show_url(url)}: is the tier itself. Give another place")
        config = registry.tier_at(location.config, url)
        if url.startswith("file:"):
            Path(config.tier_file_path).mkdir(parents=True, exist_ok=True)
        staging = Staging(TierLocation(url, config), folder)
        try:
            yield staging
        except BaseException:
            if journal is None and local is None:
                with suppress(Unavailable):
                    staging.remove()
            raise
        if local is None:
            staging.remove()
        else:
            shutil.rmtree(local, ignore_errors=True)
