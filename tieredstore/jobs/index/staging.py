"""Files between the stages of a job: written by tasks on any machine, read by others.

The place is one for a tier, `file:///dir` or `s3://bucket/prefix`, reached by the provider that
reaches tiers there. Names are unique to an attempt, so attempts at one task never meet.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.jobs.journals import staging_beside
from tieredstore.jobs.run import JobRun
from tieredstore.scan.location import TierLocation
from tieredstore.tier_url import as_url, show_url

_PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file in a staging place. number: drawn by the attempt that wrote it."""

    path: str
    number: int
    size_bytes: int

    @property
    def id(self) -> SegmentId:
        return SegmentId(self.path, FileSegmentType.INDEX, self.number)


@dataclass(frozen=True, slots=True)
class Staging:
    """A staging place, and the name of the folder in it that is one job's. Picklable."""

    location: TierLocation
    folder: str

    def write(self, provider: SegmentProvider, name: str, blocks: Iterable[Buffer]) -> StagedFile:
        """Write a new file of those bytes. Raises Unavailable."""
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
        provider = self.location.connect()
        try:
            for listing in list(provider.list(self.folder)):
                provider.open(listing.id, listing).delete()
        finally:
            provider.close()


def _pieces(blocks: Iterable[Buffer]) -> Iterator[bytes]:
    """The same bytes, in few pieces: an object store makes an object of each."""
    waiting = bytearray()
    for block in blocks:
        waiting += block
        if len(waiting) >= _PIECE_BYTES:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


def read_staged(provider: SegmentProvider, file: StagedFile, position: int, length: int) -> Buffer:
    """Read exactly `length` bytes. Raises Invalid when the file is gone, Unavailable."""
    segment = provider.open(file.id)
    try:
        return segment.read(position, length)
    except Corrupt as error:
        raise Invalid(
            f"staging {provider.url}: what an earlier run of this job left there is gone "
            f"({error}); remove the job's journal to begin anew",
            path=str(file.id),
        ) from error
    finally:
        segment.close()


@dataclass(frozen=True, slots=True)
class StagedIndex:
    """An index file in a staging place (or in a tier), as an `UploadableIndex`."""

    file: StagedFile
    begin_ms: int
    end_ms: int
    provider: SegmentProvider = field(compare=False)

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes

    def pieces(self, start: int, length: int) -> Iterator[tuple[int, Buffer]]:
        """Yield pieces as `UploadableIndex.pieces` does. Raises Invalid when the file is gone."""
        for position in range(start, self.size_bytes, length):
            count = min(length, self.size_bytes - position)
            yield position, read_staged(self.provider, self.file, position, count)


@contextmanager
def staging_of(run: JobRun, location: TierLocation, url: str | None) -> Iterator[Staging]:
    """Yield the staging place of a run: at `url`, else in a folder beside the run's journal.

    It is emptied when the block ends well; after an error it stays, for the run that goes on (a
    run without a journal keeps nothing). Raises Invalid.
    """
    journal = run.journal.path
    folder = uuid.uuid4().hex if journal is None else journal.stem
    with ExitStack() as stack:
        local: Path | None = None
        if url is None and journal is None:
            local = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{run.name}-")))
        elif url is None:
            assert journal is not None
            local = staging_beside(journal)
        if local is not None:
            url = local.as_uri()
        assert url is not None
        url = as_url(url)
        if url.rstrip("/") == location.url.rstrip("/"):
            raise Invalid(f"staging {show_url(url)}: is the tier itself; give another place")
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
