"""PosixProvider: segments as plain files in Java's layout (`docs/formats/tier-layout.md`)."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec

from tieredstore.contracts.block_checksums import BlockCoverage
from tieredstore.contracts.segment import (
    Buffer,
    Capabilities,
    SegmentId,
    SegmentListing,
    UnknownWrite,
    WriteResult,
    Written,
)
from tieredstore.contracts.tier_identity import EpochRecord, TierMark
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.disk.open_files import MAX_OPEN_FILES, OpenFile, OpenFiles
from tieredstore.errors import Corrupt, Invalid, TieredStoreError
from tieredstore.properties import find_near_setting
from tieredstore.providers import checks, naming
from tieredstore.providers.posix import own_files
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.posix.checked_reads import CheckedReads
from tieredstore.providers.posix.listing import list_clusters, list_segments
from tieredstore.providers.posix.probes import probe_posix
from tieredstore.providers.posix.sum_files import SegmentSums, SumCache, delete_orphans
from tieredstore.providers.records import RecordingProvider
from tieredstore.tier_url import file_url

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig
    from tieredstore.contracts.probing import ProbeOptions, ProbeResult
    from tieredstore.providers.posix.modelling import FileRequestModel
    from tieredstore.tier_url import TierUrl

_CAPABILITIES = Capabilities(rewritable=True, conditional=False, durable=True)
_MAX_KNOWN_DIRECTORIES = 65_536
_MAX_INTERRUPTIONS = 100
_UNCHECKED_READ_BYTES = 1 << 20
_MAX_NOWAIT_BYTES = 64 << 20
_BAD_NAME = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL})


class PosixProvider(RecordingProvider):
    """Tier below `root` on a file system. Only one process at a time may write to a broker prefix.
    `fsync`: sync the bytes, and the folders of a new file, before a write returns. `checksums`:
    write checksums to files next to segments. `max_open_files`: limit of open descriptors for all
    segments."""

    def __init__(
        self,
        root: str | Path,
        cluster: str,
        *,
        fsync: bool = True,
        checksums: bool = True,
        max_open_files: int = MAX_OPEN_FILES,
        calls: PosixCalls | None = None,
    ) -> None:
        self._root = str(Path(root).absolute())
        self._cluster_directory = f"{self._root}/{naming.cluster_directory_name(cluster)}"
        self.fsync = fsync
        self.checksums = checksums
        self.calls = calls if calls is not None else PosixCalls()
        self.files = OpenFiles(max_open_files, self.calls)
        self.sums = SumCache()
        self._known_directories: set[str] = set()
        self._expected: Mapping[tuple[str, ...], Sequence[str]] = {}

    @classmethod
    def from_config(cls, config: StoreConfig) -> PosixProvider:
        """Create the tier of `tieredStoreFilePath` and `brokerClusterName`. Raises Invalid, also if
        only a similar key is set instead of the path."""
        if not config.tier_file_path:
            given = config.plugin_properties
            near = find_near_setting("tieredStoreFilePath", given)
            if near is not None:
                raise Invalid(
                    f"{given.find_origin(near)}: tieredStoreFilePath is not set, and "
                    f"{near} is no key: did you mean tieredStoreFilePath?"
                )
        return cls(
            config.tier_file_path,
            config.broker_cluster_name,
            fsync=config.posix_fsync_enable,
            checksums=config.posix_checksum_enable,
        )

    @classmethod
    def at_url(cls, config: StoreConfig, url: TierUrl) -> StoreConfig:
        """Return `config` with the tier in the folder of a `file:///…` URL. Raises Invalid."""
        if not url.path.startswith("/"):
            raise Invalid(f"tier {url}: expected an absolute path, such as file:///path/to/tier")
        return msgspec.structs.replace(config, tier_file_path=url.path)

    def make_request_model(self) -> FileRequestModel:
        """Return the model that counts requests to files."""
        from tieredstore.providers.posix.modelling import FileRequestModel

        return FileRequestModel(self.capabilities)

    @classmethod
    def clusters(cls, config: StoreConfig) -> list[str]:
        """Return the names of the clusters that have a folder in the tier. Raises Invalid."""
        return list_clusters(config.tier_file_path)

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    @property
    def url(self) -> str:
        return file_url(self._root)

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        """List the segments. Other files are skipped. Raises Unavailable for an unreadable folder
        and for a missing root, because an unmounted disk is not an empty tier."""
        parts = naming.parse_prefix(prefix)
        try:
            self.calls.stat(self._root)
        except OSError as error:
            raise translate_os_error(error, "list", self._root, invalid=RETRY_LATER) from error
        return list_segments(self._cluster_directory, parts, self.calls, self._expected)

    def expect_queues(self, broker_name: str, paths: Sequence[str]) -> None:
        expected: dict[tuple[str, ...], list[str]] = {}
        for path in paths:
            broker, _, rest = path.partition("/")
            topic, _, queue_id = rest.rpartition("/")
            if broker == broker_name and naming.is_queue_id(queue_id):
                expected.setdefault((broker, topic), []).append(queue_id)
        self._expected = expected

    def open(self, id: SegmentId, listing: SegmentListing | None = None) -> PosixFileSegment:
        del listing
        path = f"{self._cluster_directory}/{naming.relative_segment_path(id)}"
        return PosixFileSegment(id, path, self)

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> own_files.PosixWriterEpoch:
        """Take an exclusive `flock` on `<cluster folder>/<broker>/.writer`. `take_over` and
        `record` have no effect, because the system releases the lock when its owner ends. Raises
        Fenced, naming an owner that must be stopped."""
        del take_over
        naming.check_name(broker_name, "broker name")
        directory = f"{self._cluster_directory}/{broker_name}"
        try:
            self.make_directories(directory)
        except OSError as error:
            raise translate_os_error(error, "create", directory, invalid=RETRY_LATER) from error
        return own_files.PosixWriterEpoch.acquire(
            directory, None if record is None else record.mark
        )

    def read_mark(self, broker_name: str, since: int) -> TierMark:
        """Read the file `.tier` of a broker's folder. See `IdentifiedTier`."""
        del since  # one file holds all that are kept
        naming.check_name(broker_name, "broker name")
        try:
            self.calls.stat(self._root)
        except FileNotFoundError:
            return TierMark(is_missing=True, is_empty=True)
        except OSError as error:
            raise translate_os_error(error, "read", self._root, invalid=RETRY_LATER) from error
        directory = f"{self._cluster_directory}/{broker_name}"
        found = own_files.read_identity(directory)
        number = own_files.find_newest_number(directory)
        if found is None:
            first = next(iter(self.list(broker_name)), None)
            return TierMark(None, number, is_empty=first is None)
        return TierMark(
            *(found.identity, number, found.list_marks()),
            older=found.older,
            older_store=found.older_store,
        )

    def list_brokers(self) -> Iterator[str]:
        """Yield the names of the folders in the cluster's folder. Raises Unavailable."""
        try:
            with os.scandir(self._cluster_directory) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return
        except OSError as error:
            directory = self._cluster_directory
            raise translate_os_error(error, "list", directory, invalid=RETRY_LATER) from error
        yield from filter(naming.is_name, names)

    def find_last_writer(self, broker_name: str) -> str | None:
        """Return a description of the last writer below a broker prefix, or None."""
        naming.check_name(broker_name, "broker name")
        return own_files.describe_last_writer(f"{self._cluster_directory}/{broker_name}")

    def open_records(self, *names: str, is_secret: bool = False) -> own_files.PosixFolder:
        """Return a folder of records, see `RecordingProvider`."""
        return own_files.PosixFolder("/".join((self._cluster_directory, *names)), is_secret)

    def check_blocks(self, id: SegmentId, listing: SegmentListing | None = None) -> BlockCoverage:
        return self.open(id, listing).check_blocks()

    def cover_blocks(self, id: SegmentId) -> BlockCoverage:
        return self.open(id).cover_blocks()

    def sweep_checksums(self, broker_name: str) -> int:
        naming.check_name(broker_name, "broker name")
        return delete_orphans(f"{self._cluster_directory}/{broker_name}", self.calls)

    def probes(self, options: ProbeOptions) -> Iterator[ProbeResult]:
        """Run the probes of `tieredstore doctor` on the file system, below the root."""
        return probe_posix(self._root, self.calls, options)

    def close(self) -> None:
        self.files.close()

    # State that the segments of this provider share

    def make_directories(self, directory: str) -> None:
        """Create a folder and its parents. Raises OSError."""
        try:
            self.calls.make_directory(directory)
        except FileExistsError:
            return
        except FileNotFoundError:
            parent = directory.rpartition("/")[0]
            if not parent:
                raise
            self.make_directories(parent)
            with suppress(FileExistsError):
                self.calls.make_directory(directory)
        if len(directory) <= len(self._root) and self.fsync:
            # the root's own entry. `sync_entry` stops at the root
            self.calls.sync_directory(directory.rpartition("/")[0] or "/")

    def sync_entry(self, directory: str) -> None:
        """Sync a new entry of `directory`, and all folders up to the root. Raises OSError."""
        if not self.fsync:
            return
        self.calls.sync_directory(directory)
        while directory not in self._known_directories and len(directory) > len(self._root):
            parent = directory.rpartition("/")[0]
            self.calls.sync_directory(parent)
            if len(self._known_directories) >= _MAX_KNOWN_DIRECTORIES:
                self._known_directories.clear()
            self._known_directories.add(directory)
            directory = parent


class PosixFileSegment:
    """A segment in one file. The first write creates the file."""

    PROVIDER: ClassVar = PosixProvider
    """Provider for a configuration that names this segment class, as Java's configurations do."""

    def __init__(self, id: SegmentId, path: str, provider: PosixProvider) -> None:
        self.id = id
        self._path = path
        self._provider = provider
        self._calls = provider.calls
        self._files = provider.files
        self._sums = SegmentSums(id, path, provider.calls, provider.sums, is_durable=provider.fsync)
        self._checked = CheckedReads(id, path, self._sums, self._files, provider.calls, self._read)
        self._write_lock = threading.Lock()
        self._sealed = False

    def size(self) -> int:
        found = self._stat()
        return 0 if found is None else found.st_size

    def _stat(self) -> os.stat_result | None:
        try:
            found = self._calls.stat(self._path)
        except FileNotFoundError:
            self._files.forget(self._path)
            return None
        except OSError as error:
            raise self._error("stat", error) from error
        if not stat.S_ISREG(found.st_mode):
            raise Corrupt(f"segment {self.id}: {self._path} is not a regular file", path=self._path)
        # another process may have deleted and recreated the file
        self._files.forget(self._path, unless=(found.st_dev, found.st_ino))
        return found

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        checks.check_range(self.id, position, 0)
        length = checks.total_bytes(buffers)
        with self._write_lock:
            if self._sealed:
                raise checks.make_sealed_error(self.id, position)
            file, found = self._open_new(position) if length else (None, None)
            if file is None:
                found = self._stat()
            size = 0 if found is None else found.st_size
            if position > size:
                raise checks.make_hole_error(self.id, position, size)
            if not length and position == size:
                return Written(position)
            if file is None:
                try:
                    file = self._files.take(self._path, self._write_flags(position))
                except OSError as error:
                    raise self._error("open for writing", error) from error
            with file as fd:
                try:
                    if self._provider.checksums or position < size or not size:
                        self._begin_sums(fd, position, found)
                    if position < size:
                        self._cut_tail(fd, position)
                    result = self._write(fd, position, length, buffers)
                    if isinstance(result, Written) and self._provider.checksums:
                        self._sums.extend(fd, position, buffers)
                    return result
                finally:
                    self._sums.end_write()

    def read(self, position: int, length: int) -> memoryview:
        """Read bytes, and verify the blocks that have checksums. Raises BlocksDamaged."""
        checks.check_range(self.id, position, length)
        if not length:
            return memoryview(b"")
        try:
            return self._checked.read(position, length)
        except OSError as error:
            raise self._error(f"read {length} bytes at {position}", error) from error

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        checks.check_range(self.id, position, length)
        file = self._files.find_open(self._path)
        if file is None or length > _MAX_NOWAIT_BYTES:
            return None
        try:
            found = self._checked.read_nowait(file.fd, position, length)
        except OSError as error:  # the blocking read reports the fault
            if file.is_kept:
                self._calls.note_cached_failure(error)
            return None
        return found if file.is_kept else None

    def check_blocks(self) -> BlockCoverage:
        """Read the whole segment, and verify every block that has a checksum."""
        try:
            with self._files.take(self._path) as fd:
                return self._checked.check_all(fd, self._calls.fstat(fd).st_size)
        except FileNotFoundError:
            raise checks.make_short_read_error(self.id, 0, 1, 0) from None
        except OSError as error:
            raise self._error("check", error) from error

    def cover_blocks(self) -> BlockCoverage:
        """Compute checksums for blocks that have none."""
        with self._write_lock:
            try:
                with self._files.take(self._path) as fd:
                    return self._checked.cover_all(fd, self._calls.fstat(fd).st_size)
            except FileNotFoundError:
                raise checks.make_short_read_error(self.id, 0, 1, 0) from None
            except OSError as error:
                raise self._error("check", error) from error

    def seal(self) -> None:
        """Reject later writes through this object, and sync the checksums. The file stays
        unchanged, because Java has no seal."""
        with self._write_lock:
            if not self._sealed and self._provider.fsync:
                try:
                    self._sums.sync()
                except OSError as error:
                    raise self._error("make durable the checksums", error) from error
            self._sealed = True

    def delete(self) -> None:
        with self._write_lock:
            directory = self._path.rpartition("/")[0]
            try:
                self._sums.delete()
                self._files.delete(self._path)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise self._error("delete", error) from error
            try:
                self._provider.sync_entry(directory)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise self._error("make durable its deletion", error) from error

    def close(self) -> None:
        self._files.forget(self._path)

    def _begin_sums(self, fd: int, position: int, found: os.stat_result | None) -> None:
        try:
            if found is None or not found.st_size:
                self._sums.begin_write_anew()
            else:
                self._sums.begin_write(fd, position, found.st_size, found.st_mtime_ns)
        except OSError as error:
            raise self._error(f"cut the checksums at {position}", error) from error

    def _read(self, position: int, length: int) -> memoryview:
        """Read bytes without verification. Raises OSError, Corrupt."""
        try:
            file = self._files.take(self._path)
        except FileNotFoundError:
            raise checks.make_short_read_error(self.id, position, length, 0) from None
        try:
            if length > _UNCHECKED_READ_BYTES:  # no memory for bytes that do not exist
                there = max(0, self._calls.fstat(file.fd).st_size - position)
                if there < length:
                    raise checks.make_short_read_error(self.id, position, length, there)
            return self._read_range(file.fd, position, length)
        finally:
            self._files.give_back(file)

    def _open_new(self, position: int) -> tuple[OpenFile | None, os.stat_result | None]:
        """Try the fastest way to open the file for a write at `position`. Return the file, or None
        if this way is not possible, and the result of `fstat` (None for a new file)."""
        if not position:
            return self._make_file(), None
        try:
            file = self._files.open_for_writing(self._path)
        except OSError:
            return None, None
        if file is not None:
            with suppress(OSError):
                found = self._calls.fstat(file.fd)
                if stat.S_ISREG(found.st_mode) and position <= found.st_size:
                    return file, found
            self._files.give_back(file)
            self._files.forget(self._path)
        return None, None

    def _make_file(self) -> OpenFile | None:
        try:
            self._provider.make_directories(self._path.rpartition("/")[0])
            return self._files.make(self._path)
        except FileExistsError:
            return None
        except OSError as error:
            raise self._error("open for writing", error) from error

    def _write_flags(self, position: int) -> int:
        """Return the flags for opening the file. For a new file, create its folders. Raises
        OSError."""
        if position:
            return os.O_RDWR
        self._provider.make_directories(self._path.rpartition("/")[0])
        return os.O_RDWR | os.O_CREAT

    def _write(self, fd: int, position: int, length: int, buffers: Sequence[Buffer]) -> WriteResult:
        try:
            self._write_all(fd, position, length, buffers)
        except OSError as error:
            return self._undo(fd, position, error)
        if not self._provider.fsync:
            return Written(position + length)
        try:
            self._calls.sync(fd)
            if not position:
                self._provider.sync_entry(self._path.rpartition("/")[0])
        except OSError as error:
            # The system may drop the pages and report the next sync as a success, so cached bytes
            # prove nothing. Remove the bytes, and write them again.
            reason = f"sync {self._path} after a write at {position}: {error}"
            with suppress(OSError):
                self._calls.truncate(fd, position)
            return UnknownWrite(reason)
        return Written(position + length)

    def _write_all(self, fd: int, position: int, length: int, buffers: Sequence[Buffer]) -> None:
        end, first = position + length, 0
        while position < end:
            part = buffers[first : first + self._calls.vector_limit]
            first += len(part)
            size = checks.total_bytes(part)
            try:
                count = self._calls.write(fd, part, position)
            except (InterruptedError, BlockingIOError):
                count = 0
            if count < size:
                self._write_rest(fd, position, count, b"".join(part))
            position += size

    def _write_rest(self, fd: int, position: int, done: int, data: bytes) -> None:
        """Write the remaining bytes after a short write of `done` bytes."""
        rest = memoryview(data)
        tries = 0
        while done < len(rest):
            try:
                count = self._calls.write(fd, [rest[done:]], position + done)
            except (InterruptedError, BlockingIOError):
                count = 0
            tries = 0 if count > 0 else tries + 1
            if tries > _MAX_INTERRUPTIONS:
                raise OSError(errno.EIO, f"no progress after {tries} tries")
            done += count

    def _cut_tail(self, fd: int, position: int) -> None:
        """Cut off the rest of a torn write before other bytes replace it. Otherwise a crash could
        leave the rest after the new bytes."""
        try:
            self._calls.truncate(fd, position)
        except OSError as error:
            raise self._error(f"cut at {position}", error) from error

    def _undo(self, fd: int, position: int, error: OSError) -> WriteResult:
        try:
            self._calls.truncate(fd, position)
        except OSError as second:
            return UnknownWrite(
                f"write {self._path} at {position}: {error}. The truncation failed too: {second}"
            )
        raise self._error(f"write at {position}", error) from error

    def _read_range(self, fd: int, position: int, length: int) -> memoryview:
        pieces: list[bytes] = []
        found = interruptions = 0
        while found < length:
            try:
                piece = self._calls.read(fd, length - found, position + found)
            except (InterruptedError, BlockingIOError) as error:
                interruptions += 1
                if interruptions > _MAX_INTERRUPTIONS:
                    raise self._error("read", error) from error
                continue
            if len(piece) == length:
                return memoryview(piece)
            if not piece:
                raise checks.make_short_read_error(self.id, position, length, found)
            pieces.append(piece)
            found += len(piece)
        return memoryview(b"".join(pieces))

    def _error(self, action: str, error: OSError) -> TieredStoreError:
        return translate_os_error(error, action, self._path, invalid=_BAD_NAME)
