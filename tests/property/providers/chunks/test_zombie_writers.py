"""Writers of one tier take over from one another while former writers continue to run (faults W01
and W08). Other writers run while a request is under way. Requests get lost, arrive late or arrive
twice. Segments are rolled, sealed, deleted, merged and swept. Bytes that are acknowledged after a
fence check are never lost. Every byte that is read was written by a writer."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.random_worlds.objects import RandomClient, RandomObjects
from tieredstore.clock import ManualClock
from tieredstore.contracts.segment import Companion, FileSegmentType, SegmentId, Written
from tieredstore.errors import Busy, Corrupt, Fenced, Unavailable
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.upkeep.policy import MergePolicy
from tieredstore.providers.memory.objects import MemoryObjectClient

BROKER = "broker-a"
TOPICS = ("A", "B", "C")
LOG_BYTES = 1_000
"""Distance between the base offsets of consecutive commit log segments of a queue."""
UNIT_BYTES = 1_000


def segments_of(topic: str, generation: int) -> tuple[SegmentId, SegmentId]:
    """Return the `n`-th commit log segment and the `n`-th consume queue segment of a topic, counted
    from 0. A writer seals both before it begins the next two."""
    path = f"{BROKER}/{topic}/0"
    return (
        SegmentId(path, FileSegmentType.COMMIT_LOG, generation * LOG_BYTES),
        SegmentId(path, FileSegmentType.CONSUME_QUEUE, generation * UNIT_BYTES),
    )


@dataclass(eq=False)
class Process:
    """One writer. `taken` has the content of each segment, as far as the writer knows it.
    `generations` has for each topic the number of the commit log segment and of the consume queue
    segment that the writer appends to."""

    client: RandomClient
    tier: ChunkProvider
    taken: dict[SegmentId, bytes] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)
    is_busy: bool = False

    def claim(self) -> None:
        self.epoch = self.tier.acquire_writer(BROKER, take_over=True)


class Writers:
    """All writers. `sure` has the acknowledged content of each segment. `maybe` has the contents
    that a segment may have because of requests without a reply."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.clock = ManualClock()
        self.objects = RandomObjects(
            rng, self.clock, min_part_bytes=60, page_keys=rng.choice([3, 1000])
        )
        self.sure: dict[SegmentId, bytes] = {}
        self.maybe: dict[SegmentId, set[bytes]] = {}
        self.former: list[Process] = []
        self.current: Process | None = None
        self.claims = self.number = 0
        self.steps: list[str] = []
        self.take_over(is_clean=False)

    def _start(self) -> Process:
        client = RandomClient(self.objects)
        tier = chunk_provider(
            client,
            clock=self.clock,
            monotonic_ms=self.clock.monotonic_ms,
            grace_ms=self.rng.choice([0, 40_000]),
            write_cache_bytes=self.rng.choice([0, 60, 5000]),
            block_cache_bytes=300,
            block_bytes=32,
            read_threads=1,
            group_bytes=self.rng.choice([0, 0, 50, 120]),
            regroup_interval_ms=60_000,
            regrouped_bytes=80,
            split_bytes=150,
            split_age_ms=600_000,
            sweep_interval_ms=1,
            policy=MergePolicy(
                fan_in=3, target_bytes=100, part_bytes=60, free_bytes=20, settle_ms=0
            ),
        )
        return Process(client, tier)

    def take_over(self, *, is_clean: bool) -> None:
        """Let a new process take over. The former process has not noticed this, and continues to
        run."""
        self.claims += 1
        try:
            with self.objects.calmly():
                self._take_over(is_clean)
        except Fenced:
            pass  # another one took over in the meantime
        finally:
            self.claims -= 1

    def _take_over(self, is_clean: bool) -> None:
        before = self.current
        if before is not None and is_clean:
            with contextlib.suppress(Unavailable, Fenced):
                before.epoch.release()
        process = self._start()
        process.claim()
        self.current = process
        listed = {item.id: item for item in process.tier.list(BROKER)}
        found = {
            one: bytes(process.tier.open(one, item).read(0, item.size_bytes))
            for one, item in listed.items()
        }
        process.epoch.confirm()
        for one in {*found, *self.sure}:
            self._compare(one, found.get(one, b""), "after a take-over")
        self.sure.update(found)
        self.maybe = {one: {content} for one, content in self.sure.items()}
        process.taken = dict(found)
        for topic in TOPICS:
            begins = [one.base_offset for one in found if one == self._log_of(one, topic)]
            process.generations[topic] = max(begins, default=0) // LOG_BYTES
        if before is not None:
            self.former = [*self.former, before][-3:]

    def _log_of(self, one: SegmentId, topic: str) -> SegmentId:
        return segments_of(topic, one.base_offset // LOG_BYTES)[0]

    def _compare(self, one: SegmentId, found: bytes, where: str) -> None:
        sure = self.sure.get(one, b"")
        assert found.startswith(sure), f"{where}: {one} lacks acknowledged bytes"
        may_be = {*self.maybe.get(one, ()), sure}
        assert any(content.startswith(found) for content in may_be), f"{where}: {one} is invented"

    # What a process does

    def act(self, process: Process) -> None:
        if process.is_busy:
            return
        kind = self.rng.choices(
            ["commit", "alone", "seal", "maintain", "sweep", "delete", "confirm"],
            [10, 3, 2, 6, 2, 1, 2],
        )[0]
        self.steps.append(kind if process is self.current else f"former:{kind}")
        process.is_busy = True
        try:
            self._act(process, kind)
        except Fenced:
            assert process is not self.current or self.claims, "the newest writer is fenced"
        except Corrupt:
            assert process is not self.current, "the newest writer meets damage"
        except (Unavailable, Busy):
            self._look(process)
        finally:
            process.is_busy = False

    def _act(self, process: Process, kind: str) -> None:
        rng, topic = self.rng, self.rng.choice(TOPICS)
        if kind == "commit":
            for one in rng.sample(TOPICS, rng.choice([1, 1, 2, 3])):
                self._write(process, one)
            self._confirm(process)
        elif kind == "alone":
            self._write(process, topic, is_alone=True)
        elif kind == "confirm":
            self._confirm(process)
        elif kind == "seal":
            self._seal(process, topic)
        elif kind == "delete":
            self._delete(process, topic)
        else:
            self.clock.advance(rng.choice([1_000, 41_000, 61_000, 700_000]))
            process.tier.run_maintenance(sweep=kind == "sweep")

    def _write(self, process: Process, topic: str, *, is_alone: bool = False) -> None:
        log, queue = segments_of(topic, process.generations.get(topic, 0))
        self.number += 1
        text = b"<%s%d>" % (topic.encode(), self.number) * self.rng.choice([1, 1, 2, 9])
        units = b"%04d" % (self.number % 10_000)
        texts, unit = process.taken.get(log, b""), process.taken.get(queue, b"")
        if len(texts) + len(text) > LOG_BYTES or len(unit) + len(units) > UNIT_BYTES - 100:
            return
        self.maybe.setdefault(log, set()).add(texts + text)
        self.maybe.setdefault(queue, set()).add(unit + units)
        tier = process.tier
        second = None
        if is_alone:
            first = tier.open(log).write(len(texts), [text])
        else:
            may_wait = self.rng.random() < 0.6
            companion = Companion(tier.open(queue), len(unit), [units], may_wait=may_wait)
            first, second = tier.open(log).write_with(len(texts), [text], companion)
        if not isinstance(first, Written):
            raise Unavailable("the content is not known")
        process.taken[log] = texts + text
        if is_alone:
            return
        if second is None:
            second = tier.open(queue).write(len(unit), [units])
        if not isinstance(second, Written):
            raise Unavailable("the content is not known")
        process.taken[queue] = unit + units

    def _confirm(self, process: Process) -> None:
        before = dict(process.taken)
        process.epoch.confirm()
        for one, content in before.items():
            known = self.sure.get(one, b"")
            if content.startswith(known):
                self.sure[one] = content
                self.maybe.setdefault(one, set()).add(content)
            elif process is self.current:
                assert known.startswith(content), f"{one}: two histories are acknowledged"

    def _seal(self, process: Process, topic: str) -> None:
        ids = segments_of(topic, process.generations.get(topic, 0))
        if not process.taken.get(ids[0]):
            return
        self._confirm(process)
        for one in ids:
            if process.taken.get(one):
                process.tier.open(one).seal()
        process.generations[topic] = process.generations.get(topic, 0) + 1

    def _delete(self, process: Process, topic: str) -> None:
        newest = process.generations.get(topic, 0)
        generations = range(1) if self.rng.random() < 0.5 else range(newest + 1)
        victims = [one for number in generations for one in segments_of(topic, number)[::-1]]
        if process is self.current:  # a segment under deletion is promised no longer
            for one in victims:
                self.sure.pop(one, None)
                self.maybe.setdefault(one, set()).add(b"")
        for one in victims:
            process.tier.open(one).delete()
            process.taken.pop(one, None)
            if process is self.current:
                self.maybe[one] = {b""}
        if len(generations) > newest:
            process.generations[topic] = 0

    def _look(self, process: Process) -> None:
        """List the segments, as a writer does after an error."""
        with self.objects.calmly():
            for one in list(process.taken):
                try:
                    segment = process.tier.open(one)
                    process.taken[one] = bytes(segment.read(0, segment.size()))
                except Unavailable:
                    process.taken.pop(one)
                except (Fenced, Corrupt):
                    assert process is not self.current, f"the newest writer cannot read {one}"
                    process.taken.pop(one)
                else:
                    if process is self.current:
                        self._compare(one, process.taken[one], "the newest writer")

    # What others do, and what a reader finds

    def read(self) -> None:
        with self.objects.calmly():
            tier = chunk_provider(MemoryObjectClient(beside=self.objects.base))
            listed = {item.id: item for item in tier.list(BROKER)}
            for one in {*listed, *self.sure}:
                segment = tier.open(one, listed.get(one))
                found = bytes(segment.read(0, segment.size()))
                self._compare(one, found, "a reader")
                if self.rng.random() < 0.05:
                    fresh = chunk_provider(MemoryObjectClient(beside=self.objects.base))
                    assert bytes(fresh.open(one).read(0, len(found))) == found

    def others(self, client: RandomClient) -> None:
        """Run other writers while a client waits for an answer."""
        assert self.current is not None
        chance = self.rng.random()
        free = [
            one
            for one in (*self.former, self.current)
            if one.client is not client and not one.is_busy
        ]
        if chance < 0.15:
            self.steps.append("(take-over)")
            self.take_over(is_clean=False)
        elif chance < 0.3:
            self.objects.deliver(0.6)
        elif free:
            self.act(self.rng.choice(free))

    def go(self, steps: int) -> None:
        rng = self.rng
        for _ in range(steps):
            assert self.current is not None
            self.objects.rate = rng.choice([0, 0, 0.04, 0.15])
            self.objects.pre_empted = rng.choice([0, 0, 0.1])
            self.objects.meanwhile = self.others
            chance = rng.random()
            if chance < 0.08:
                self.steps.append("take-over")
                self.take_over(is_clean=rng.random() < 0.5)
            elif chance < 0.16:
                self.objects.deliver(0.6)
            elif chance < 0.35 and self.former:
                self.act(rng.choice(self.former))
            else:
                self.act(self.current)
            if rng.random() < 0.35:
                self.read()


def run(seed: int, steps: int) -> None:
    writers = Writers(seed)
    try:
        writers.go(steps)
    except BaseException as error:
        error.add_note(f"seed {seed}: {' '.join(writers.steps[-40:])}")
        raise


@pytest.mark.parametrize("seed", range(3))
def test_w01_w08_former_writers_go_on_inside_requests(seed: int) -> None:
    run(seed, 100)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 1_600, 20))
def test_w01_w08_former_writers_go_on_inside_requests_for_long(first: int) -> None:
    for seed in range(first, first + 20):
        run(seed, 100)
