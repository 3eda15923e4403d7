"""Reads of a chunk log: ranges of objects, split and in parallel, within one bounded pool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from tieredstore.contracts.block_checksums import DamagedBlock
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.message.crc import raw_crc32
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.lives.chain import Chain
from tieredstore.providers.chunks.lives.names import make_key
from tieredstore.providers.chunks.reading.cache import ByteCache, WriteCache
from tieredstore.providers.chunks.reading.hedging import Hedge
from tieredstore.providers.chunks.settings import ChunkSettings

CARRIER_BYTES: Final = 64 << 10
"""Of a write that carries units, at most, to be read whole for the sake of one of them."""
CARRIERS_BYTES: Final = 16 << 20
CHECKED_BYTES: Final = 64 << 10
"""Of bytes with a CRC, at most, to be read whole for the sake of some of them."""


class ObjectGone(Corrupt):
    """An object of a chain is not there, or ends early: the chain is an old one, or the data is
    damaged. Whoever knows the chain looks again before it says so."""


class ExtentsDamaged(Corrupt):
    """Extents of a chain do not have their CRCs. blocks: by ascending position, one at least."""

    def __init__(self, folder: str, blocks: Sequence[DamagedBlock]) -> None:
        super().__init__(f"{folder}: {blocks[0]}", path=folder, offset=blocks[0].start)
        self.blocks = tuple(blocks)


class Range(NamedTuple):
    """`length` bytes from byte `position` of an object on. carrier_bytes: of units, the size of the
    write that carries them behind their messages; else 0."""

    key: str
    position: int
    length: int
    carrier_bytes: int = 0


def cut_ranges(
    folder: str, chain: Chain, position: int, length: int, part_bytes: int
) -> Iterator[Range]:
    """Yield the ranges of objects that hold bytes of a segment, each of `part_bytes` at most."""
    for extent in chain.find_extents(position, length):
        first, last = max(position, extent.start), min(position + length, extent.end)
        while first < last:
            end = min(first + part_bytes, last)
            start = first - extent.start + extent.skip
            carrier_bytes = extent.skip + extent.length if extent.is_carried else 0
            yield Range(make_key(folder, extent.name), start, end - first, carrier_bytes)
            first = end


class ChunkReader:
    """`written`: contents of objects, by key, that need not be asked for.

    Small writes that carry units are read whole for the units: who asks for these wants their
    messages next, and a request for both takes as long as one for either.
    """

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
        chain: Chain,
        wanted: Sequence[tuple[int, int]],
        *,
        is_checked: bool = True,
    ) -> list[bytes]:
        """Read the content of each (position, length), which the chain must hold. is_checked: what
        has a CRC in the chain is compared, and read whole for that where it is short. Raises
        ObjectGone, ExtentsDamaged, Unavailable, Corrupt, Invalid when closed."""
        most_bytes = CHECKED_BYTES if is_checked else 0
        widened = [chain.widen(*place, most_bytes) for place in wanted]
        ranges: list[Range] = []
        counts = []
        for position, length in widened:
            found = list(self._ranges(folder, chain, position, length))
            ranges += found
            counts.append(len(found))
        pieces = iter(self._get_all(ranges))
        contents = [_join([next(pieces) for _ in range(count)]) for count in counts]
        for (position, length), content in zip(widened, contents, strict=True):
            if len(content) != length:
                chain.check_whole(folder, position, length)
                raise Corrupt(
                    f"{folder}: expected {length} bytes at {position}, found {len(content)}",
                    path=folder,
                    offset=position,
                )
            if is_checked:
                _check_crcs(folder, chain, position, content)
        return [
            content
            if len(content) == length
            else content[position - start : position - start + length]
            for content, (start, _), (position, length) in zip(
                contents, widened, wanted, strict=True
            )
        ]

    def read_object(self, key: str, position: int, length: int) -> Iterator[bytes]:
        """Yield bytes of an object, part by part. Raises as `read`."""
        end = position + length
        while position < end:
            part = min(self._settings.read_part_bytes, end - position)
            with self._settings.limit_retries():
                yield self._get_whole(Range(key, position, part))
            position += part

    def read_nowait(self, folder: str, chain: Chain, position: int, length: int) -> bytes | None:
        """Return the content when no request is needed, else None."""
        pieces = []
        for part in self._ranges(folder, chain, position, length):
            content = self._find_kept(part)
            if content is None:
                return None
            pieces.append(content)
        return _join(pieces)

    def close(self, timeout_ms: int) -> None:
        """Begin no more requests, and wait for those under way, at most for `timeout_ms`."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self.hedge is not None:
            self.hedge.close()
        with self._ended:
            self._ended.wait_for(lambda: not self._running_count, timeout_ms / 1000)

    def _ranges(self, folder: str, chain: Chain, position: int, length: int) -> Iterable[Range]:
        return cut_ranges(folder, chain, position, length, self._settings.read_part_bytes)

    def _get_all(self, ranges: Sequence[Range]) -> list[bytes]:
        """One of them in the calling thread, which would only wait."""
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


def _check_crcs(folder: str, chain: Chain, position: int, content: bytes) -> None:
    """Raise ExtentsDamaged for extents that are whole in the content from a position on, and do not
    have their CRCs."""
    view = memoryview(content)
    end = position + len(content)
    damaged = []
    for extent in chain.find_extents(position, len(content)):
        if extent.crc < 0 or extent.start < position or extent.end > end:
            continue
        found = raw_crc32(view[extent.start - position : extent.end - position])
        if found != extent.crc:
            damaged.append(DamagedBlock(extent.start, extent.end, extent.crc, found))
    if damaged:
        raise ExtentsDamaged(folder, damaged)
