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

from tieredstore.contracts.backups import BackupName
from tieredstore.contracts.block_checksums import BlockCoverage
from tieredstore.contracts.epoch_record import EpochRecord
from tieredstore.contracts.segment import (
    Buffer,
    Capabilities,
    SegmentId,
    SegmentListing,
    UnknownWrite,
    WriteResult,
    Written,
)
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.disk.open_files import MAX_OPEN_FILES, OpenFile, OpenFiles
from tieredstore.errors import Corrupt, Invalid, TieredStoreError
from tieredstore.properties import find_near_setting
from tieredstore.providers import checks, naming
from tieredstore.providers.posix.backups import PosixBackups
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.posix.checked_reads import CheckedReads
from tieredstore.providers.posix.listing import list_clusters, list_segments
from tieredstore.providers.posix.probes import probe_posix
from tieredstore.providers.posix.sum_files import SegmentSums, SumCache, delete_orphans
from tieredstore.providers.posix.writer import PosixWriterEpoch, describe_last_writer
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


class PosixProvider:
    """A tier below `root` on a file system; one process writes a broker prefix at a time.

    fsync: whether a write returns only once its bytes (and the folders of a new file) are on
    stable storage. checksums: whether it leaves checksums beside what it writes. max_open_files:
    descriptors kept open, over all segments.
    """

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
        self._fsync = fsync
        self._checksums = checksums
        self._calls = calls if calls is not None else PosixCalls()
        self._files = OpenFiles(max_open_files, self._calls)
        self._sums = SumCache()
        self._known_directories: set[str] = set()
        self._expected: Mapping[tuple[str, ...], Sequence[str]] = {}

    @classmethod
    def from_config(cls, config: StoreConfig) -> PosixProvider:
        """Make the tier of `tieredStoreFilePath` and `brokerClusterName`. Raises Invalid, also when
        the path is not set and a key is almost this one: the tier would be in the working
        directory."""
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
            max_open_files=config.posix_max_open_files,
        )

    @classmethod
    def at_url(cls, config: StoreConfig, url: TierUrl) -> StoreConfig:
        """Return `config` with the tier in the folder of a `file:///…` URL. Raises Invalid."""
        if not url.path.startswith("/"):
            raise Invalid(f"tier {url}: expected an absolute path, such as file:///path/to/tier")
        return msgspec.structs.replace(config, tier_file_path=url.path)

    def make_request_model(self) -> FileRequestModel:
        """Make the rules of what files are asked for."""
        from tieredstore.providers.posix.modelling import FileRequestModel

        return FileRequestModel(self.capabilities)

    @classmethod
    def clusters(cls, config: StoreConfig) -> list[str]:
        """List the names of the clusters that have a folder in the tier. Raises Invalid."""
        return list_clusters(config.tier_file_path)

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    @property
    def url(self) -> str:
        return file_url(self._root)

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        """List the segments in one walk over the files. Files whose names are not a segment's are
        not ours and are left out; so is nothing else: a folder that cannot be read raises
        Unavailable, and so does a root that is not there (an unmounted disk is not an empty
        tier)."""
        parts = naming.parse_prefix(prefix)
        try:
            self._calls.stat(self._root)
        except OSError as error:
            raise translate_os_error(error, "list", self._root, invalid=RETRY_LATER) from error
        return list_segments(self._cluster_directory, parts, self._calls, self._expected)

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
    ) -> PosixWriterEpoch:
        """Take an exclusive `flock` on `<cluster folder>/<broker>/.writer`.

        `take_over` and `record` change nothing here: the system ends a lock with its owner, so the
        owner that the error names is alive and must be stopped.
        """
        del take_over, record
        naming.check_name(broker_name, "broker name")
        directory = f"{self._cluster_directory}/{broker_name}"
        try:
            self.make_directories(directory)
        except OSError as error:
            raise translate_os_error(error, "create", directory, invalid=RETRY_LATER) from error
        return PosixWriterEpoch.acquire(directory)

    def find_last_writer(self, broker_name: str) -> str | None:
        """Describe the last writer below a broker prefix; None when there was none."""
        naming.check_name(broker_name, "broker name")
        return describe_last_writer(f"{self._cluster_directory}/{broker_name}")

    def list_backups(self, broker_name: str) -> Sequence[BackupName]:
        return self._backups(broker_name).list()

    def read_backup(self, broker_name: str, name: BackupName) -> bytes | None:
        return self._backups(broker_name).read(name)

    def write_backup(self, broker_name: str, name: BackupName, data: bytes) -> None:
        self._backups(broker_name).write(name, data)

    def delete_backups(self, broker_name: str, names: Iterable[BackupName]) -> None:
        self._backups(broker_name).delete(names)

    def _backups(self, broker_name: str) -> PosixBackups:
        naming.check_name(broker_name, "broker name")
        return PosixBackups(f"{self._cluster_directory}/{broker_name}")

    def check_blocks(self, id: SegmentId, listing: SegmentListing | None = None) -> BlockCoverage:
        return self.open(id, listing).check_blocks()

    def cover_blocks(self, id: SegmentId) -> BlockCoverage:
        return self.open(id).cover_blocks()

    def sweep_checksums(self, broker_name: str) -> int:
        naming.check_name(broker_name, "broker name")
        return delete_orphans(f"{self._cluster_directory}/{broker_name}", self._calls)

    def probes(self, options: ProbeOptions) -> Iterator[ProbeResult]:
        """Run the probes of `tieredstore doctor` on the file system, below the root."""
        return probe_posix(self._root, self._calls, options)

    def close(self) -> None:
        self._files.close()

    # What the segments of this provider share

    @property
    def files(self) -> OpenFiles:
        return self._files

    @property
    def sums(self) -> SumCache:
        return self._sums

    @property
    def calls(self) -> PosixCalls:
        return self._calls

    @property
    def fsync(self) -> bool:
        return self._fsync

    @property
    def checksums(self) -> bool:
        return self._checksums

    def make_directories(self, directory: str) -> None:
        """Make a folder and those above it. Raises OSError."""
        try:
            self._calls.make_directory(directory)
        except FileExistsError:
            return
        except FileNotFoundError:
            parent = directory.rpartition("/")[0]
            if not parent:
                raise
            self.make_directories(parent)
            with suppress(FileExistsError):
                self._calls.make_directory(directory)
        if len(directory) <= len(self._root) and self._fsync:
            # the root's own entry; `sync_entry` stops at the root
            self._calls.sync_directory(directory.rpartition("/")[0] or "/")

    def sync_entry(self, directory: str) -> None:
        """Make a new entry of `directory` durable, and the folders up to the root. Raises
        OSError."""
        if not self._fsync:
            return
        self._calls.sync_directory(directory)
        while directory not in self._known_directories and len(directory) > len(self._root):
            parent = directory.rpartition("/")[0]
            self._calls.sync_directory(parent)
            if len(self._known_directories) >= _MAX_KNOWN_DIRECTORIES:
                self._known_directories.clear()
            self._known_directories.add(directory)
            directory = parent


class PosixFileSegment:
    """One file. Made by its first write, not by opening it."""

    PROVIDER: ClassVar = PosixProvider
    """What a configuration means that names this class, as Java's do."""

    def __init__(self, id: SegmentId, path: str, provider: PosixProvider) -> None:
        self._id = id
        self._path = path
        self._provider = provider
        self._calls = provider.calls
        self._files = provider.files
        self._sums = SegmentSums(id, path, provider.calls, provider.sums, is_durable=provider.fsync)
        self._checked = CheckedReads(id, path, self._sums, self._files, provider.calls, self._read)
        self._write_lock = threading.Lock()
        self._sealed = False

    @property
    def id(self) -> SegmentId:
        return self._id

    def size(self) -> int:
        found = self._stat()
        return 0 if found is None else found.st_size

    def _stat(self) -> os.stat_result | None:
        """Ask for the file; None where it is not there."""
        try:
            found = self._calls.stat(self._path)
        except FileNotFoundError:
            self._files.forget(self._path)
            return None
        except OSError as error:
            raise self._error("stat", error) from error
        if not stat.S_ISREG(found.st_mode):
            raise self._make_kind_error()
        # another process may have deleted the file and made it again
        self._files.forget(self._path, unless=(found.st_dev, found.st_ino))
        return found

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        checks.check_range(self._id, position, 0)
        length = checks.total_bytes(buffers)
        with self._write_lock:
            if self._sealed:
                raise checks.make_sealed_error(self._id, position)
            file, found = self._open_new(position) if length else (None, None)
            if file is None:
                found = self._stat()
            size = 0 if found is None else found.st_size
            if position > size:
                raise checks.make_hole_error(self._id, position, size)
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
        """Read, and check the blocks of which there are checksums. Raises BlocksDamaged."""
        checks.check_range(self._id, position, length)
        if not length:
            return memoryview(b"")
        try:
            return self._checked.read(position, length)
        except OSError as error:
            raise self._error(f"read {length} bytes at {position}", error) from error

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        checks.check_range(self._id, position, length)
        file = self._files.find_open(self._path)
        if file is None or length > _MAX_NOWAIT_BYTES:
            return None
        try:
            found = self._checked.read_nowait(file.fd, position, length)
        except OSError as error:  # the blocking read says what is wrong
            if file.is_kept:
                self._calls.note_cached_failure(error)
            return None
        return found if file.is_kept else None

    def check_blocks(self) -> BlockCoverage:
        """Read the whole segment and check all that has checksums."""
        try:
            with self._files.take(self._path) as fd:
                return self._checked.check_all(fd, self._calls.fstat(fd).st_size)
        except FileNotFoundError:
            raise checks.make_short_read_error(self._id, 0, 1, 0) from None
        except OSError as error:
            raise self._error("check", error) from error

    def cover_blocks(self) -> BlockCoverage:
        """Give checksums to what has none."""
        with self._write_lock:
            try:
                with self._files.take(self._path) as fd:
                    return self._checked.cover_all(fd, self._calls.fstat(fd).st_size)
            except FileNotFoundError:
                raise checks.make_short_read_error(self._id, 0, 1, 0) from None
            except OSError as error:
                raise self._error("check", error) from error

    def seal(self) -> None:
        """End writes through this object. Java has no seal: checksums alone are made durable."""
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
        """Read without checks. Raises OSError, Corrupt."""
        try:
            file = self._files.take(self._path)
        except FileNotFoundError:
            raise checks.make_short_read_error(self._id, position, length, 0) from None
        try:
            if length > _UNCHECKED_READ_BYTES:  # no memory for what is not there
                there = max(0, self._calls.fstat(file.fd).st_size - position)
                if there < length:
                    raise checks.make_short_read_error(self._id, position, length, there)
            return self._read_range(file.fd, position, length)
        finally:
            self._files.give_back(file)

    def _open_new(self, position: int) -> tuple[OpenFile | None, os.stat_result | None]:
        """Take the file, newly opened for a write at a position, with what the system says of it,
        which is nothing of a new one: nobody need ask by the path. None where that must be done."""
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
        """Make the file, with its folders; None where it is there."""
        try:
            self._provider.make_directories(self._path.rpartition("/")[0])
            return self._files.make(self._path)
        except FileExistsError:
            return None
        except OSError as error:
            raise self._error("open for writing", error) from error

    def _write_flags(self, position: int) -> int:
        """Flags to open with; makes the folders of a new file. Raises OSError."""
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
            # The system may drop the pages and call the next sync a success, so what a reader
            # sees in its cache now proves nothing: take the bytes away, they must come again.
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
        """Go on after a short write, of which `done` bytes were written."""
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
        """Drop a torn write before the bytes that replace it come: a crash in between must not
        leave these followed by the rest of it."""
        try:
            self._calls.truncate(fd, position)
        except OSError as error:
            raise self._error(f"cut at {position}", error) from error

    def _undo(self, fd: int, position: int, error: OSError) -> WriteResult:
        try:
            self._calls.truncate(fd, position)
        except OSError as second:
            return UnknownWrite(
                f"write {self._path} at {position}: {error}; and cutting it off again: {second}"
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
                raise checks.make_short_read_error(self._id, position, length, found)
            pieces.append(piece)
            found += len(piece)
        return memoryview(b"".join(pieces))

    def _error(self, action: str, error: OSError) -> TieredStoreError:
        return translate_os_error(error, action, self._path, invalid=_BAD_NAME)

    def _make_kind_error(self) -> Corrupt:
        return Corrupt(f"segment {self._id}: {self._path} is not a regular file", path=self._path)
