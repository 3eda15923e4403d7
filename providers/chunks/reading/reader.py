"""Reads of a chunk log. Ranges are split, and read in parallel by one bounded thread pool."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Final, NamedTuple, TypeVar

from cachetools import LRUCache

from tieredstore.contracts.block_checksums import DamagedBlock
from tieredstore.contracts.objects import ObjectClient
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.message.crc import raw_crc32
from tieredstore.providers.chunks.manifests.names import make_key
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.retries import carry_budget
from tieredstore.providers.chunks.settings import ChunkSettings


class ByteCache:
    """Cache of the most recently used bytes, at most `max_bytes` in total. Longer values are not
    cached. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: LRUCache[Hashable, bytes] = LRUCache(max_bytes, getsizeof=len)
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> bytes | None:
        with self._lock:
            return self._entries.get(key)

    def put(self, key: Hashable, content: bytes) -> None:
        if len(content) <= self._max_bytes:
            with self._lock:
                self._entries[key] = content

    @property
    def size_bytes(self) -> int:
        return int(self._entries.currsize)


class _Entry(NamedTuple):
    """Cached value. `kept_ms`: time at which it was cached. `position`: position of its first byte
    in the object."""

    kept_ms: int
    position: int
    content: bytes


class WriteCache:
    """Cache of small objects, and of the ends of large ones, between their write and their merge.
    It has at most `max_bytes`. A full cache rejects new values, because each value is needed only
    once and the oldest one is needed next. Values expire after `max_age_ms`. Thread-safe."""

    def __init__(self, max_bytes: int, max_age_ms: int, monotonic_ms: Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._max_age_ms = max_age_ms
        self._monotonic_ms = monotonic_ms
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.size_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: str, position: int, length: int) -> bytes | None:
        """Return a range of an object, or None if it is not completely cached."""
        found = self._entries.get(key)
        if found is None or position < found.position:
            return None
        start = position - found.position
        content = found.content[start : start + length]
        return content if len(content) == length else None

    def put(self, key: str, content: bytes, position: int = 0) -> None:
        """Cache the bytes of an object from a position to its end."""
        now_ms = self._monotonic_ms()
        with self._lock:
            self._remove(key)
            while self._entries:
                oldest = next(iter(self._entries))
                if now_ms - self._entries[oldest].kept_ms <= self._max_age_ms:
                    break
                self._remove(oldest)
            if self.size_bytes + len(content) <= self._max_bytes:
                self._entries[key] = _Entry(now_ms, position, content)
                self.size_bytes += len(content)

    def forget(self, key: str, position: int, length: int) -> None:
        """Drop a range of an object. Cached bytes before or after the range stay. If both exist,
        all are dropped."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return
            before = found.content[: max(0, position - found.position)]
            behind = found.content[max(0, position + length - found.position) :]
            rest, start = (before, found.position) if before else (behind, position + length)
            if not rest or (before and behind):
                self._remove(key)
                return
            self.size_bytes -= len(found.content) - len(rest)
            self._entries[key] = _Entry(found.kept_ms, max(start, found.position), rest)

    def drop(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self._remove(key)

    def _remove(self, key: str) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self.size_bytes -= len(found.content)


T = TypeVar("T")
_KEPT_DURATIONS = 256
_FEWEST_DURATIONS = 20


class Hedge:
    """Hedged reads: a read that takes longer than the running p95, and at least `min_ms`, is sent a
    second time. At most `share` of all reads are sent twice."""

    def __init__(
        self, monotonic_ms: Callable[[], int], *, min_ms: int, share: float, threads: int
    ) -> None:
        self._monotonic_ms = monotonic_ms
        self._min_ms = min_ms
        self._share = share
        self._pool = ThreadPoolExecutor(threads, "tiered-hedge")
        self._durations: deque[int] = deque(maxlen=_KEPT_DURATIONS)
        self._lock = threading.Lock()
        self.call_count = 0
        self.extra_count = 0

    def call(self, read: Callable[[], T]) -> T:
        """Return the result of the first successful read. Raises an error if no read succeeds."""
        with self._lock:
            self.call_count += 1
            delay_ms = self._delay_ms()
        read = carry_budget(read)
        first = self._pool.submit(self._time_read, read)
        futures: set[Future[T]] = {first}
        if delay_ms is not None:
            done, _ = wait(futures, delay_ms / 1000)
            if not done and self._take_extra():
                futures.add(self._pool.submit(self._time_read, read))
        while True:
            done, futures = wait(futures, return_when=FIRST_COMPLETED)
            good = [future for future in done if future.exception() is None]
            if good or not futures:
                return (good or list(done))[0].result()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _time_read(self, read: Callable[[], T]) -> T:
        begin_ms = self._monotonic_ms()
        result = read()
        self._durations.append(self._monotonic_ms() - begin_ms)
        return result

    def _delay_ms(self) -> int | None:
        durations = sorted(self._durations.copy())
        if len(durations) < _FEWEST_DURATIONS:
            return None
        return max(self._min_ms, durations[len(durations) * 95 // 100])

    def _take_extra(self) -> bool:
        with self._lock:
            if self.extra_count + 1 > self.call_count * self._share:
                return False
            self.extra_count += 1
            return True


CARRIER_BYTES: Final = 64 << 10
"""Maximum size, in bytes, at which a write with units is always read completely, even if only a
part is requested."""
CARRIERS_BYTES: Final = 16 << 20
CHECKED_BYTES: Final = 64 << 10
"""Maximum size, in bytes, at which an extent with a CRC is always read completely, even if only a
part is requested."""


class ObjectGone(Corrupt):
    """An object of a segment manifest is missing or too short. Either the manifest is out of date,
    or the data is damaged. The caller lists the segment again to find out."""


class ExtentsDamaged(Corrupt):
    """Extents of a segment manifest do not match their CRCs. `blocks`: the damaged extents, by
    ascending position."""

    def __init__(self, folder: str, blocks: Sequence[DamagedBlock]) -> None:
        super().__init__(f"{folder}: {blocks[0]}", path=folder, offset=blocks[0].start)
        self.blocks = tuple(blocks)


class Range(NamedTuple):
    """`length` bytes of an object from byte `position`. `carrier_bytes`: for units, the size of the
    object that contains them after their messages, otherwise 0."""

    key: str
    position: int
    length: int
    carrier_bytes: int = 0


def cut_ranges(
    folder: str, manifest: SegmentManifest, position: int, length: int, part_bytes: int
) -> Iterator[Range]:
    """Yield the object ranges that contain bytes of a segment, each at most `part_bytes` long."""
    for extent in manifest.find_extents(position, length):
        first, last = max(position, extent.start), min(position + length, extent.end)
        while first < last:
            end = min(first + part_bytes, last)
            start = first - extent.start + extent.skip
            carrier_bytes = extent.skip + extent.length if extent.is_carried else 0
            yield Range(make_key(folder, extent.name), start, end - first, carrier_bytes)
            first = end


class ChunkReader:
    """Reader of ranges. `written`: cache of written objects. Units of a small object are read
    together with their messages, which are usually needed next."""

    def __init__(self, client: ObjectClient, settings: ChunkSettings, written: WriteCache) -> None:
        self._client = client
        self._settings = settings
        self._written = written
        self._carriers = ByteCache(CARRIERS_BYTES)
        self._pool = ThreadPoolExecutor(settings.read_threads, "tiered-read")
        self._is_closed = False
        self._running_count = 0
        self._ended = threading.Condition()
        self.hedge: Hedge | None = None
        if settings.hedge:
            self.hedge = Hedge(
                settings.monotonic_ms,
                min_ms=settings.hedge_min_ms,
                share=settings.hedge_share,
                threads=2 * settings.read_threads,
            )

    def read(
        self,
        folder: str,
        manifest: SegmentManifest,
        wanted: Sequence[tuple[int, int]],
        *,
        is_checked: bool = True,
    ) -> list[bytes]:
        """Read the content of each (position, length), which the segment manifest must contain.
        `is_checked`: compare the bytes with their CRCs, which needs complete short extents. Raises
        ObjectGone, ExtentsDamaged, Unavailable, Corrupt, Invalid when closed."""
        most_bytes = CHECKED_BYTES if is_checked else 0
        widened = [manifest.widen(*place, most_bytes) for place in wanted]
        ranges: list[Range] = []
        counts = []
        for position, length in widened:
            found = list(self._ranges(folder, manifest, position, length))
            ranges += found
            counts.append(len(found))
        pieces = iter(self._get_all(ranges))
        contents = [_join([next(pieces) for _ in range(count)]) for count in counts]
        for (position, length), content in zip(widened, contents, strict=True):
            if len(content) != length:
                manifest.check_whole(folder, position, length)
                raise Corrupt(
                    f"{folder}: expected {length} bytes at {position}, found {len(content)}",
                    path=folder,
                    offset=position,
                )
            if is_checked:
                _check_crcs(folder, manifest, position, content)
        return [
            content
            if len(content) == length
            else content[position - start : position - start + length]
            for content, (start, _), (position, length) in zip(
                contents, widened, wanted, strict=True
            )
        ]

    def read_object(self, key: str, position: int, length: int) -> Iterator[bytes]:
        """Yield bytes of an object, part by part. Raises the errors of `read`."""
        end = position + length
        while position < end:
            part = min(self._settings.read_part_bytes, end - position)
            with self._settings.limit_retries():
                yield self._get_whole(Range(key, position, part))
            position += part

    def read_nowait(
        self, folder: str, manifest: SegmentManifest, position: int, length: int
    ) -> bytes | None:
        """Return the bytes if no request is needed, else None."""
        pieces = []
        for part in self._ranges(folder, manifest, position, length):
            content = self._find_kept(part)
            if content is None:
                return None
            pieces.append(content)
        return _join(pieces)

    def close(self, timeout_ms: int) -> None:
        """Send no further requests, and wait for running ones, at most `timeout_ms`."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self.hedge is not None:
            self.hedge.close()
        with self._ended:
            self._ended.wait_for(lambda: not self._running_count, timeout_ms / 1000)

    def _ranges(
        self, folder: str, manifest: SegmentManifest, position: int, length: int
    ) -> Iterable[Range]:
        return cut_ranges(folder, manifest, position, length, self._settings.read_part_bytes)

    def _get_all(self, ranges: Sequence[Range]) -> list[bytes]:
        """Read all ranges in parallel, one of them in the calling thread."""
        if not ranges:
            return []
        others: list[Future[bytes]] = []
        try:
            others += (self._pool.submit(self._get, part) for part in ranges[:-1])
            last = self._get(ranges[-1])
            return [*(other.result() for other in others), last]
        except (RuntimeError, CancelledError):
            if not self._is_closed:
                raise
            raise self._make_closed_error(ranges[-1]) from None
        finally:
            for other in others:
                other.cancel()

    def _make_closed_error(self, part: Range) -> Invalid:
        return Invalid(
            f"{part.key}: not read: the provider is closed", path=part.key, offset=part.position
        )

    def _get(self, part: Range) -> bytes:
        with self._ended:
            self._running_count += 1
        try:
            return self._get_part(part)
        finally:
            with self._ended:
                self._running_count -= 1
                self._ended.notify_all()

    def _get_part(self, part: Range) -> bytes:
        content = self._find_kept(part)
        if content is not None:
            return content
        with self._settings.limit_retries():
            if not 0 < part.carrier_bytes <= CARRIER_BYTES:
                return self._get_whole(part)
            carrier = self._get_whole(Range(part.key, 0, part.carrier_bytes))
        self._carriers.put(part.key, carrier)
        return carrier[part.position : part.position + part.length]

    def _find_kept(self, part: Range) -> bytes | None:
        content = self._written.get(part.key, part.position, part.length)
        if content is not None:
            return content
        end = part.position + part.length
        carrier = self._carriers.get(part.key)
        return carrier[part.position : end] if carrier and end <= len(carrier) else None

    def _get_whole(self, part: Range) -> bytes:
        pieces: list[bytes] = []
        done = 0
        problem: Unavailable | None = None
        for attempt in self._settings.attempts():
            if self._is_closed:
                raise self._make_closed_error(part)
            try:
                piece = self._request(part, done)
            except Unavailable as error:
                problem = error
                self._settings.pause(attempt)
                continue
            if not piece:
                raise ObjectGone(
                    f"{part.key}: expected {part.length} bytes at {part.position}, found "
                    + ("no object" if piece is None else str(done)),
                    path=part.key,
                    offset=part.position,
                )
            done += len(piece)
            pieces.append(piece)
            if done > part.length:
                raise Corrupt(
                    f"{part.key}: asked for {part.length} bytes at {part.position}, got {done}",
                    path=part.key,
                    offset=part.position,
                )
            if done == part.length:
                return _join(pieces)
        raise problem or Unavailable(
            f"{part.key}: {done} of {part.length} bytes at {part.position} after "
            f"{self._settings.max_tries} requests",
            path=part.key,
            offset=part.position,
        )

    def _request(self, part: Range, done: int) -> bytes | None:
        get: Callable[[], bytes | None] = partial(
            self._client.get_range, part.key, part.position + done, part.length - done
        )
        return get() if self.hedge is None else self.hedge.call(get)


def _join(pieces: Sequence[bytes]) -> bytes:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _check_crcs(folder: str, manifest: SegmentManifest, position: int, content: bytes) -> None:
    """Check the CRCs of the extents that `content` contains completely. Raises ExtentsDamaged."""
    view = memoryview(content)
    end = position + len(content)
    damaged = []
    for extent in manifest.find_extents(position, len(content)):
        if extent.crc < 0 or extent.start < position or extent.end > end:
            continue
        found = raw_crc32(view[extent.start - position : extent.end - position])
        if found != extent.crc:
            damaged.append(DamagedBlock(extent.start, extent.end, extent.crc, found))
    if damaged:
        raise ExtentsDamaged(folder, damaged)
