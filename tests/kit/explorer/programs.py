"""Programs of the explored processes: writers that upload like a broker, and readers. They use only
the contract of segment providers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.kit.explorer.process import Process, Program
from tests.kit.explorer.promises import (
    Acknowledged,
    Attempt,
    Began,
    DeleteBegins,
    DeleteEnds,
    Disturbed,
    Inherited,
    Milestone,
    Piece,
    Seen,
    SessionBegins,
    Stopped,
)
from tests.kit.explorer.wire import Reply, Request, WireClient
from tests.kit.memory_chunks import chunk_provider
from tieredstore.clock import ManualClock
from tieredstore.contracts.objects import ClientLimits
from tieredstore.contracts.segment import (
    Companion,
    FencedWrite,
    FileSegment,
    FileSegmentType,
    PairedSegment,
    SegmentId,
    SegmentListing,
    Written,
)
from tieredstore.errors import Fenced, TieredStoreError, Unavailable
from tieredstore.providers.chunks.upkeep.policy import MergePolicy

BROKER = "b"
UNITS = "#"
"""Suffix of the path of a queue's consume queue. A path without this suffix is that of a commit
log."""
READY = Request("READY", "")
WAIT = "WAIT"
_MAX_OFFSET = 2**63 - 1
_TRIES = 4
"""Number of attempts of a write or read. It is larger than the number of faults in any scenario."""
POLICY = MergePolicy(fan_in=2, target_bytes=1_000, part_bytes=1_000, free_bytes=0)


@dataclass(frozen=True)
class Setting:
    """Environment of a process. With `clock_stands`, its clock advances only while the process
    sleeps, like the clock of a paused machine. Otherwise it follows the server's clock. `settings`
    configure the chunk log."""

    clock_stands: bool = True
    page_keys: int = 1_000
    limits: ClientLimits = field(default_factory=ClientLimits)
    settings: Mapping[str, Any] = field(default_factory=dict)


class _Tier:
    """A provider for one process, whose requests the explorer answers."""

    def __init__(self, process: Process, setting: Setting) -> None:
        self._process = process
        self._setting = setting
        self._clock = ManualClock(process.start_ms)
        self.client = WireClient(self._ask, setting.limits, setting.page_keys, process.start_ms)
        quick: dict[str, Any] = {
            "fencing": False,  # no probe of the endpoint: it is known
            "max_tries": 2,
            "policy": POLICY,
            "clock": self._clock,
            "monotonic_ms": self._clock.monotonic_ms,
        }
        self.provider = chunk_provider(
            self.client, owner=process.name, **(quick | dict(setting.settings))
        )

    def ready(self) -> None:
        """End the first part of a program, during which no other process runs."""
        self._process.ask(READY)

    def wait_for(self, milestone: str) -> None:
        """Wait until another process reaches a milestone."""
        self._process.ask(Request(WAIT, milestone))

    def reach(self, milestone: str) -> None:
        """Report a milestone. Processes that wait for it continue."""
        self._process.note(Milestone(milestone))

    def sleep(self, duration_ms: int) -> None:
        """Sleep for the given time."""
        self.client.sleep(duration_ms)
        if self._setting.clock_stands:
            self._clock.advance(duration_ms)

    def list_files(self) -> dict[str, list[SegmentListing]]:
        """List the segments of each file by base offset."""
        files: dict[str, list[SegmentListing]] = {}
        for found in sorted(self.provider.list(BROKER), key=lambda found: found.id.base_offset):
            is_log = found.id.type is FileSegmentType.COMMIT_LOG
            files.setdefault(found.id.path + ("" if is_log else UNITS), []).append(found)
        return files

    def _ask(self, request: Request) -> Reply:
        """Send a request, and set the clock to the time of the reply."""
        reply = self._process.ask(request)
        if not self._setting.clock_stands and not reply.is_lost:
            self._clock.advance_to(reply.now_ms)
        return reply


class Writer(_Tier):
    """A broker that uploads, like a small `FlatAppendFile`. Each file is the commit log or the
    consume queue of a queue."""

    def beside(self, script: Callable[[Writer], None]) -> None:
        """Run a function concurrently with the rest of the program."""
        self._process.spawn(partial(_run, self._process, partial(script, self)))

    def begin(self) -> None:
        """Acquire the writer epoch, and continue from the files in the tier."""
        self._epoch: Any = self.provider.acquire_writer(BROKER, take_over=True)
        self._process.note(Began(self._process.name, self._epoch.number))
        self.reach(f"{self._process.name} began")
        self._files: dict[str, list[FileSegment]] = {}
        self._ends: dict[str, int] = {}
        self._own: list[FileSegment] = []
        inherited = {f"{BROKER}/{topic}/0": (0, 0) for topic in "TU"}
        inherited |= {f"{BROKER}/{topic}/0{UNITS}": (0, 0) for topic in "TU"}
        for path, listings in self.list_files().items():
            self._files[path] = [self.provider.open(found.id, found) for found in listings]
            end = listings[-1].id.base_offset + listings[-1].size_bytes
            self._ends[path] = end
            inherited[path] = listings[0].id.base_offset, end
        self._confirm()
        for path, (start, end) in inherited.items():
            self._process.note(Inherited(path, start, end, self._epoch.number))

    def append(self, text: bytes, topic: str = "T", again: Sequence[bytes] = ()) -> None:
        """Write `text` at the end of a commit log. If a write fails, write the next text of `again`
        instead. Raises Fenced, Unavailable."""
        self._append(text, f"{BROKER}/{topic}/0", again)

    def append_pair(self, text: bytes, units: bytes, again: Sequence[bytes] = ()) -> None:
        """Write messages and units of one queue together, as a commit does. If the outcome is
        unknown, write each file separately. `again` has texts to write instead of the messages, as
        in `append`. Raises Fenced, Unavailable."""
        log_path, units_path = f"{BROKER}/T/0", f"{BROKER}/T/0{UNITS}"
        pieces = [self._make_piece(log_path, text), self._make_piece(units_path, units)]
        log, queue = (self._take_last(piece) for piece in pieces)
        assert isinstance(log, PairedSegment)
        for piece in pieces:
            self._process.note(Attempt(piece))
        starts = [
            piece.position - segment.id.base_offset
            for piece, segment in zip(pieces, (log, queue), strict=True)
        ]
        results = log.write_with(starts[0], [text], Companion(queue, starts[1], [units]))
        for piece, segment, result in zip(pieces, (log, queue), results, strict=True):
            if isinstance(result, Written):
                self._own.append(segment)
                self._ends[piece.file] = piece.end
        if all(isinstance(result, Written) for result in results):
            self._confirm()
        for piece, result in zip(pieces, results, strict=True):
            if all(isinstance(other, Written) for other in results):
                self._process.note(Acknowledged(piece))
            elif not isinstance(result, Written):
                others = again if piece is pieces[0] else ()
                self._append(next(iter(others), piece.text), piece.file, others[1:])
            else:
                self._confirm()
                self._process.note(Acknowledged(piece))

    def append_gathered(self, **pairs: tuple[bytes, bytes]) -> None:
        """Write messages and units of several queues, given by topic, so that they can share one
        object. They are confirmed together. Raises Fenced, Unavailable."""
        pieces: list[Piece] = []
        for topic, texts in pairs.items():
            path = f"{BROKER}/{topic}/0"
            pair = [
                self._make_piece(file, text)
                for file, text in zip((path, f"{path}{UNITS}"), texts, strict=True)
            ]
            log, queue = (self._take_last(piece) for piece in pair)
            assert isinstance(log, PairedSegment)
            for piece in pair:
                self._process.note(Attempt(piece))
            starts = [
                piece.position - segment.id.base_offset
                for piece, segment in zip(pair, (log, queue), strict=True)
            ]
            units = Companion(queue, starts[1], [texts[1]], may_wait=True)
            results = log.write_with(starts[0], [texts[0]], units)
            if not all(isinstance(result, Written) for result in results):
                self._process.note(Disturbed(pair[0], str(results)))
                raise Unavailable(f"{path}: not taken: {results}")
            self._own += [log, queue]
            for piece in pair:
                self._ends[piece.file] = piece.end
            pieces += pair
        for turn in range(_TRIES):
            try:
                self._confirm()
                break
            except Unavailable:
                if turn == _TRIES - 1:
                    raise
        for piece in pieces:
            self._process.note(Acknowledged(piece))

    def _make_piece(self, path: str, text: bytes) -> Piece:
        return Piece(path, self._ends.setdefault(path, 0), text, self._epoch.number)

    def _take_last(self, piece: Piece) -> FileSegment:
        """Return the last segment of a file."""
        segments = self._files.setdefault(piece.file, [])
        if not segments:
            segments.append(self._open(piece.file, piece.position, is_new=True))
        return segments[-1]

    def _append(self, text: bytes, path: str, again: Sequence[bytes] = ()) -> None:
        position = self._ends.setdefault(path, 0)
        others = iter(again)
        for turn in range(_TRIES):
            text = next(others, text) if turn else text
            piece = Piece(path, position, text, self._epoch.number)
            segment = self._take_last(piece)
            segments = self._files[path]
            start = position - segment.id.base_offset
            self._process.note(Attempt(piece))
            result = segment.write(start, [text])
            if not isinstance(result, Written) and not self._is_there(segment, start, text):
                if isinstance(result, FencedWrite):
                    self._leave_tail(segments, piece, result)
                continue
            self._confirm()
            self._own.append(segment)
            self._ends[path] = piece.end
            self._process.note(Acknowledged(piece))
            return
        self._process.note(Disturbed(piece, f"not written after {_TRIES} tries"))
        raise Unavailable(f"{path}: not written after {_TRIES} tries")

    def roll(self, topic: str = "T") -> None:
        """Continue in a new segment."""
        path = f"{BROKER}/{topic}/0"
        self._files[path][-1].seal()
        self._files[path].append(self._open(path, self._ends[path], is_new=True))

    def seal(self, topic: str = "T") -> None:
        """Close the last segment."""
        self._files[f"{BROKER}/{topic}/0"][-1].seal()

    def expire(self, topic: str = "T") -> None:
        """Delete the first segment of a file."""
        path = f"{BROKER}/{topic}/0"
        first, second = self._files[path][:2]
        self._delete(path, first.id.base_offset, second.id.base_offset, [first])

    def delete_pair(self) -> None:
        """Delete both files of a queue, as the tier does."""
        self.delete(units=True)
        self.delete()

    def delete(self, topic: str = "T", *, units: bool = False) -> None:
        """Delete a file. The next append creates a new one."""
        path = f"{BROKER}/{topic}/0{UNITS if units else ''}"
        self._delete(path, 0, _MAX_OFFSET, self._files.get(path, [])[::-1])
        self._ends[path] = 0

    def look(self, topic: str = "T") -> None:
        """Query the size of the last segment."""
        for segment in self._files.get(f"{BROKER}/{topic}/0", [])[-1:]:
            segment.size()

    def claim(self) -> None:
        """Acquire the writer epoch without writing anything."""
        self._epoch = self.provider.acquire_writer(BROKER, take_over=True)
        self._process.note(Began(self._process.name, self._epoch.number))
        self.reach(f"{self._process.name} began")

    def stop(self) -> None:
        """Stop the writer cleanly."""
        self._epoch.release()
        self.reach(f"{self._process.name} stopped")

    def keep(self, *, sweep: bool = False) -> None:
        """Run the maintenance that is due."""
        self.provider.run_maintenance(sweep=sweep)

    def _delete(self, path: str, start: int, end: int, segments: list[FileSegment]) -> None:
        epoch = self._epoch.number
        self._process.note(DeleteBegins(path, start, end, epoch))
        for segment in segments:
            segment.delete()
            self._files[path].remove(segment)
        self._process.note(DeleteEnds(path, start, end, epoch))

    def _open(self, path: str, base_offset: int, *, is_new: bool) -> FileSegment:
        is_log = not path.endswith(UNITS)
        kind = FileSegmentType.COMMIT_LOG if is_log else FileSegmentType.CONSUME_QUEUE
        name = SegmentId(path.removesuffix(UNITS), kind, base_offset)
        return self.provider.open(name, SegmentListing(name, 0) if is_new else None)

    def _is_there(self, segment: FileSegment, start: int, text: bytes) -> bool:
        if segment.size() < start + len(text):
            return False
        return bytes(segment.read(start, len(text))) == text

    def _leave_tail(self, segments: list[FileSegment], piece: Piece, result: FencedWrite) -> None:
        """Continue in a new segment if another writer's bytes are at the position of `piece`.
        Raises Fenced if this writer has lost its epoch."""
        last = segments[-1]
        if not result.stale:
            raise Fenced(result.writer)
        if last in self._own:
            self._process.note(Disturbed(piece, result.writer))
        if piece.position > last.id.base_offset:
            segments.append(self._open(piece.file, piece.position, is_new=True))
        else:
            last.delete()
            segments[-1] = self._open(piece.file, piece.position, is_new=False)

    def _confirm(self) -> None:
        self._epoch.confirm()


class Reader(_Tier):
    """A reader of the whole tier, without a state directory."""

    def read_all(self) -> None:
        """Read the tier and note the bytes of each file."""
        name = self._process.name
        self._process.note(SessionBegins(name))
        listed = self.list_files()
        for path in sorted({f"{BROKER}/T/0", f"{BROKER}/T/0{UNITS}", *listed}):
            listings = listed.get(path, [])
            parts = []
            faults = []
            limits = [*(found.id.base_offset for found in listings[1:]), _MAX_OFFSET]
            for found, limit in zip(listings, limits, strict=False):
                base = found.id.base_offset
                length = min(found.size_bytes, limit - base)
                try:
                    content = self.provider.open(found.id, found).read(0, length)
                    parts.append((base, bytes(content)))
                except Unavailable:
                    raise
                except TieredStoreError as error:
                    faults.append(str(error))
            self._process.note(Seen(name, path, tuple(parts), "; ".join(faults)))


def writer(script: Callable[[Writer], None], setting: Setting | None = None) -> Program:
    """Return the program of a writer that runs `script` until it must stop."""

    def run(process: Process) -> None:
        tier = Writer(process, setting or Setting())
        _run(process, lambda: script(tier))

    return run


def reader(setting: Setting | None = None, after: str = "") -> Program:
    """Return the program of a reader that waits for a milestone and then reads the whole tier
    once."""

    def run(process: Process) -> None:
        tier = Reader(process, setting or Setting())
        if after:
            tier.wait_for(after)
        _run(process, tier.read_all)

    return run


def _run(process: Process, script: Callable[[], None]) -> None:
    try:
        script()
    except TieredStoreError as error:
        process.note(Stopped(f"{type(error).__name__}: {error}"))
