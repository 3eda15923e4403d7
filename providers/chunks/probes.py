"""Probes of any object store. They test the store's real behaviour through the tier's
ObjectClient."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, runtime_checkable

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.objects import CopiedPart, ObjectClient, Part
from tieredstore.contracts.probing import ProbeOptions, ProbeResult, Verdict
from tieredstore.errors import TieredStoreError
from tieredstore.providers.chunks.epochs.fencing import (
    ABANDONED_MS,
    explain_ignored,
    honours_create_if_absent,
    remove_objects,
)
from tieredstore.providers.probing import (
    Finding,
    guard_probe,
    guard_probes,
    info,
    measure_calls,
    note,
    ok,
    quantiles,
    rate,
    skew,
    unsafe,
)

FOLDER = ".doctor"
_SMALL_BYTES = 4 << 10
_LARGE_SAMPLES = 3
_CLEANINGS = 4
_NAMES = ("A", "Z", "a", "a!", "a-1", "b/1", "b/2", "c%20d", "c d", "zz", "é", "你")
"""Names whose order by UTF-8 bytes differs from their order by characters or UTF-16 units."""


@runtime_checkable
class ProbedClient(Protocol):
    """Object client with additional probes."""

    def probes(self, folder: str) -> Iterator[ProbeResult]:
        """Yield the results of probes below `folder` (with a trailing slash). The caller deletes
        the folder's objects."""


def probe_objects(
    client: ObjectClient, options: ProbeOptions, *, clock: Clock = SYSTEM_CLOCK
) -> Iterator[ProbeResult]:
    """Run all probes below `.doctor/<random>/` of the tier, and delete their objects afterwards.
    Raises Invalid and Unavailable if the tier cannot be listed."""
    folder = f"{FOLDER}/{uuid.uuid4().hex}/"
    _remove_abandoned(client)
    try:
        yield from _probe(client, folder, options, clock)
    finally:
        left = _clean(client, folder)
    yield left


def _remove_abandoned(client: ObjectClient) -> None:
    """Delete objects that earlier probes left behind."""
    found = list(client.list(f"{FOLDER}/"))
    before_ms = client.now_ms() - ABANDONED_MS
    with suppress(TieredStoreError):  # Reported at the end, if objects remain.
        remove_objects(client, [info.key for info in found if info.modified_ms < before_ms])
    with suppress(TieredStoreError):
        client.abort_uploads(f"{FOLDER}/", before_ms)


def _probe(
    client: ObjectClient, folder: str, options: ProbeOptions, clock: Clock
) -> Iterator[ProbeResult]:
    probes = _ObjectProbes(client, folder, options, clock)
    first = guard_probe("write and read", probes.basics)
    yield first
    if first.verdict is Verdict.UNSAFE:
        return  # Further probes would show nothing more.
    yield from guard_probes(
        [
            ("conditional put", probes.conditional_put),
            ("conditional race", probes.race),
            ("multipart", probes.compose),
            ("range", probes.ranges),
            ("listing", probes.listing),
            ("clock", probes.clock),
            ("latency of a PUT", probes.put_latency),
            ("latency of a GET", probes.get_latency),
        ]
    )
    if options.large_bytes:
        yield guard_probe("throughput", probes.throughput)
    if isinstance(client, ProbedClient):
        yield from client.probes(folder)


def _clean(client: ObjectClient, folder: str) -> ProbeResult:
    """Delete all objects of the probes, and report those that remain. Idempotent."""
    problem: TieredStoreError | None = None
    left: list[str] = []
    for _ in range(_CLEANINGS):
        try:
            remove_objects(client, [info.key for info in client.list(folder)])
            left = [info.key for info in client.list(folder)]
            # Last, since a late part keeps its upload open.
            client.abort_uploads(folder, client.now_ms())
        except TieredStoreError as error:
            problem = error
        else:
            problem = None
            if not left:
                return ProbeResult("delete", Verdict.OK, "everything removed")
    if problem is not None:
        text = " ".join(str(problem).split())
        return ProbeResult("delete", Verdict.UNSAFE, f"failed; look below {folder}", text)
    return ProbeResult(
        "delete",
        Verdict.UNSAFE,
        f"{len(left)} deleted objects are still listed, the first: {left[0]}",
        "listings are not consistent: deleted objects could be read again",
    )


class _ObjectProbes:
    """The probes of an object store. Each probe has its own keys."""

    def __init__(
        self, client: ObjectClient, folder: str, options: ProbeOptions, clock: Clock
    ) -> None:
        self._client = client
        self._folder = folder
        self._options = options
        self._clock = clock

    def basics(self) -> Finding:
        """Check PUT, HEAD, GET and metadata, on which every write and its recovery depend."""
        key = self._folder + "basic"
        metadata = {"w": "1:doctor", "crc": "cbf43926"}
        self._client.put_if_absent(key, [b"1234", b"56789"], metadata)
        content, info = self._client.get_range(key, 0, 100), self._client.head(key)
        if content != b"123456789" or info is None or info.size_bytes != 9:
            return unsafe(f"an object just written reads as {content!r}, {info}")
        kept = info.metadata or {}
        if any(kept.get(field) != value for field, value in metadata.items()):
            return unsafe(
                f"user metadata {metadata} comes back as {dict(kept)}",
                "a write whose reply was lost looks like another writer's",
            )
        return ok("consistent, with its metadata")

    def conditional_put(self) -> Finding:
        if not self._client.limits.conditional:
            return note(
                "this client does not ask for it",
                "nothing fences a second writer here: be sure that there is one only",
            )
        if not honours_create_if_absent(self._client, self._folder.rstrip("/")):
            return unsafe("ignored", explain_ignored(self._client))
        return ok("an existing object is not overwritten")

    def race(self) -> Finding:
        """Check that only one of several concurrent writers creates a new key, and that its bytes
        are stored."""
        options = self._options
        if not self._client.limits.conditional:
            return note("not asked", "see conditional put")
        winners = []
        with ThreadPoolExecutor(options.racers, "race") as pool:
            for number in range(options.rounds):
                key = f"{self._folder}race-{number}"
                start = threading.Barrier(options.racers)

                def put(racer: int, key: str = key, start: threading.Barrier = start) -> bool:
                    start.wait()
                    return self._client.put_if_absent(key, [b"%d" % racer], {})

                won = [
                    racer for racer, made in enumerate(pool.map(put, range(options.racers))) if made
                ]
                winners.append(len(won))
                content = self._client.get_range(key, 0, 16)
                if len(won) == 1 and content != b"%d" % won[0]:
                    return unsafe(
                        f"the object of writer {won[0]} has the bytes {content!r}",
                        "a writer with a success response has lost its bytes",
                    )
        found = f"winners of {options.racers} in {options.rounds} rounds: {winners}"
        if max(winners) > 1:
            return unsafe(
                found,
                "not atomic: two writers can get success for one key, and data of one is lost",
            )
        if min(winners) < 1:
            # The reply to any winner may be lost, and its retry answered with 412.
            return note(found, "replies were lost: run it again")
        return ok(found)

    def compose(self) -> Finding:
        """Check a multipart upload with a copied part. It must fail to complete if the key
        exists."""
        limits = self._client.limits
        size = limits.min_part_bytes + 1
        data = _pattern(size)
        original, key = self._folder + "source", self._folder + "composed"
        self._client.put_if_absent(original, [data], {})
        parts: list[Part] = [CopiedPart(original, 0, size), [b"tail"]]
        if not self._client.compose(key, parts, {"w": "1:doctor"}):
            return unsafe("a new object was refused as taken")
        info = self._client.head(key)
        content = self._client.get_range(key, size - 4, 100)
        if info is None or info.size_bytes != size + 4 or content != data[-4:] + b"tail":
            return unsafe("a copied part is not the bytes of its source", "seals break")
        again = self._client.compose(key, [[b"other"]], {})
        now = self._client.head(key)
        if again or now is None or now.size_bytes != size + 4:
            judge = unsafe if limits.conditional else note
            return judge(
                "a completed upload overwrites an object that is there",
                "two writers that seal one segment could disagree",
            )
        return ok("parts are copied, completed only if absent")

    def ranges(self) -> Finding:
        key, data = self._folder + "range", _pattern(1000)
        self._client.put_if_absent(key, [data], {})
        wanted = {
            "within": ((10, 20), data[10:30]),
            "over the end": ((990, 100), data[990:]),
            "behind the end": ((1000, 10), b""),
        }
        wrong = [
            what
            for what, (place, right) in wanted.items()
            if self._client.get_range(key, *place) != right
        ]
        absent = self._client.get_range(self._folder + "absent", 0, 10)
        if absent is not None:
            wrong.append("of no object")
        if wrong:
            return unsafe(f"wrong bytes for a range {', '.join(wrong)}")
        return ok("exact; cut at the end; none behind it")

    def listing(self) -> Finding:
        """Check that a listing shows new objects immediately and in byte order, from any start
        key."""
        folder = self._folder + "list/"
        keys = sorted((folder + found for found in _NAMES), key=str.encode)
        for key in keys:
            self._client.put_if_absent(key, [b"x"], {})
        found = [info.key for info in self._client.list(folder)]
        missing = sorted(set(keys) - set(found))
        if missing:
            return unsafe(
                f"{len(missing)} objects just written are not listed, the first: {missing[0]!r}",
                "recovery lists: it would not see acknowledged data",
            )
        if found != keys:
            return unsafe(
                f"not in the order of UTF-8 bytes: {found}",
                "segments would be put together wrongly",
            )
        behind = [info.key for info in self._client.list(folder, keys[4])]
        lost = [key for key in keys[5:] if key not in behind]
        if any(key.isascii() for key in lost) or not set(behind) <= set(keys[5:]):
            return unsafe(
                f"behind {keys[4]!r}: {behind}", "a later writer epoch could be overlooked"
            )
        self._client.delete(keys[:3])
        rest = [info.key for info in self._client.list(folder)]
        if rest != keys[3:]:
            return unsafe(f"after a deletion: {rest}")
        if lost:
            # The store lists from a key on only among ASCII names.
            return note(
                f"complete; behind a key names that are not ASCII are left out: {lost}",
                "no harm here; other programs that list so would not see all",
            )
        return ok("complete at once, in the order of UTF-8 bytes")

    def clock(self) -> Finding:
        return skew(self._client.now_ms() - self._clock.now_ms(), whose="the endpoint's")

    def put_latency(self) -> Finding:
        data = _pattern(_SMALL_BYTES)
        numbers = iter(range(self._options.samples))

        def put() -> None:
            self._client.put_if_absent(f"{self._folder}small-{next(numbers)}", [data], {})

        taken = measure_calls(put, self._options.samples)
        return info(f"4 KiB: {quantiles(taken)}")

    def get_latency(self) -> Finding:
        key = self._folder + "small-0"
        taken = measure_calls(
            lambda: self._client.get_range(key, 0, _SMALL_BYTES), self._options.samples
        )
        return info(f"4 KiB: {quantiles(taken)}")

    def throughput(self) -> Finding:
        size = self._options.large_bytes
        data = _pattern(size)
        numbers = iter(range(_LARGE_SAMPLES))

        def put() -> None:
            self._client.put_if_absent(f"{self._folder}large-{next(numbers)}", [data], {})

        up = measure_calls(put, _LARGE_SAMPLES)
        read: list[bytes | None] = []
        key = self._folder + "large-0"
        down = measure_calls(
            lambda: read.append(self._client.get_range(key, 0, size)), _LARGE_SAMPLES
        )
        if any(content != data for content in read):
            return unsafe(f"{size} bytes come back otherwise")
        found = f"{size >> 20} MiB, one at a time: PUT {rate(size, up)}, GET {rate(size, down)}"
        return info(found)


def _pattern(size_bytes: int) -> bytes:
    block = bytes(range(251))
    return (block * (size_bytes // len(block) + 1))[:size_bytes]
