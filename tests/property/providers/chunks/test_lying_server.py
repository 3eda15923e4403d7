"""A chunk log uses the S3 client, and the server's replies are wrong at random (faults O03 to O06).
A read returns the confirmed bytes unchanged, or raises an error."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.kit.s3.backoff import no_backoff
from tests.kit.s3.lying_server import LyingServer
from tests.kit.s3.scripted_server import ACCESS_KEY, SECRET_KEY, ScriptedServer
from tieredstore import registry
from tieredstore.config import config_from_properties
from tieredstore.contracts.segment import (
    Companion,
    FileSegmentType,
    PairedSegment,
    SegmentId,
    SegmentProvider,
    Written,
)
from tieredstore.errors import Unavailable
from tieredstore.providers.chunks.settings import ChunkSettings

__all__ = ["no_backoff"]
TOPICS = "AB"
BROKER = "broker-a"
PAIRS = {
    topic: tuple(
        SegmentId(f"{BROKER}/{topic}/0", kind, 0)
        for kind in (FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE)
    )
    for topic in TOPICS
}
ALL = [one for pair in PAIRS.values() for one in pair]


class Run:
    """One run of the test, with one writer at a time. `stored` has the bytes that the writer
    assumes to be written, `sure` the confirmed bytes."""

    def __init__(self, server: ScriptedServer, seed: int) -> None:
        self.random = random.Random(seed)
        self.lying = LyingServer(server, random.Random(seed + 1))
        self.url = server.url
        self.stored = dict.fromkeys(ALL, b"")
        self.sure = dict.fromkeys(ALL, b"")
        self.number = 0
        self.steps: list[str] = []
        self.start()

    def start(self) -> None:
        self.lying.rate = 0
        keys = {
            "tieredBackendServiceProvider": "s3",
            "objectStoreBucket": "tier",
            "objectStoreEndpoint": self.url,
            "tieredStoreS3Region": "us-east-1",
            "tieredStoreS3PathStyle": "path",
            "objectStoreAccessKey": ACCESS_KEY,
            "objectStoreSecretKey": SECRET_KEY,
            "tieredStoreChunkGroupSize": str(self.random.choice([0, 20_000])),
            "brokerName": BROKER,
        }
        self.provider: SegmentProvider = registry.segment_provider(
            config_from_properties(keys, origin="test").config
        )
        self.epoch = self.provider.acquire_writer(BROKER, take_over=True)
        self.read_all()
        self.epoch.confirm()
        self.sure = dict(self.stored)

    def read_all(self) -> None:
        """Read all segments. Check that each begins with its confirmed bytes, and note its whole
        content as written."""
        for one in ALL:
            segment = self.provider.open(one)
            self.stored[one] = bytes(segment.read(0, segment.size()))
            assert self.stored[one].startswith(self.sure[one]), f"{one}: confirmed bytes are lost"

    def write(self) -> None:
        log, queue = PAIRS[self.random.choice(TOPICS)]
        self.number += 1
        text = b"<%d>" % self.number * self.random.choice([1, 20, 400])
        units = b"u%03d" % (self.number % 1_000)
        try:
            self._write(log, queue, text, units)
            self.epoch.confirm()
            self.sure = dict(self.stored)
        except Unavailable:
            self.lying.rate = 0
            with suppress(Unavailable):
                self.epoch.confirm()
            self.read_all()

    def _write(self, log: SegmentId, queue: SegmentId, text: bytes, units: bytes) -> None:
        there = self.provider.open(queue)
        companion = Companion(
            there, len(self.stored[queue]), [units], may_wait=self.random.random() < 0.5
        )
        first_segment = self.provider.open(log)
        assert isinstance(first_segment, PairedSegment)
        first, second = first_segment.write_with(len(self.stored[log]), [text], companion)
        for one, data, result in ((log, text, first), (queue, units, second)):
            if result is None:
                result = there.write(len(self.stored[queue]), [units])
            if not isinstance(result, Written):
                raise Unavailable("no known outcome")
            self.stored[one] += data

    def read(self) -> None:
        one = self.random.choice(ALL)
        if self.sure[one]:
            begin = self.random.randrange(len(self.sure[one]))
            end = self.random.randrange(begin + 1, len(self.sure[one]) + 1)
            found = bytes(self.provider.open(one).read(begin, end - begin))
            assert found == self.sure[one][begin:end], f"{one}: others at [{begin}, {end})"

    def delete(self) -> None:
        for one in reversed(PAIRS[self.random.choice(TOPICS)]):
            self.sure[one] = b""
            while self.stored[one]:
                try:
                    self.provider.open(one).delete()
                    self.stored[one] = b""
                except Unavailable:
                    self.lying.rate = 0

    def maintain(self) -> None:
        self.provider.run_maintenance()  # type: ignore[attr-defined]

    def restart(self) -> None:
        with suppress(Unavailable):
            if self.random.random() < 0.5:
                self.epoch.release()
        self.close()
        self.start()

    def close(self) -> None:
        with suppress(Unavailable):
            self.provider.close()

    def go(self, count: int) -> None:
        actions = [self.write] * 6 + [self.read] * 3 + [self.maintain, self.restart, self.delete]
        for _ in range(count):
            action = self.random.choice(actions)
            self.steps.append(action.__name__)
            self.lying.rate = self.random.choice([0, 0.05, 0.2])
            with suppress(Unavailable):
                action()
            self.lying.rate = 0
            if self.random.random() < 0.3:
                for one, expected in self.sure.items():
                    found = bytes(self.provider.open(one).read(0, len(expected)))
                    assert found == expected, f"{one}: others than confirmed"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    monkeypatch.setattr(ChunkSettings, "pause", lambda _self, _attempt=0: None)
    server = ScriptedServer()
    yield server
    server.close()


def run(server: ScriptedServer, seed: int, count: int) -> None:
    one = Run(server, seed)
    try:
        one.go(count)
    except BaseException as error:
        error.add_note(f"seed {seed}: {' '.join(one.steps[-30:])}; {dict(one.lying.fates)}")
        raise
    finally:
        one.lying.rate = 0
        one.close()


@pytest.mark.parametrize("seed", range(2))
def test_o03_o04_o05_o06_what_a_lying_server_confirmed_is_read(
    server: ScriptedServer, seed: int
) -> None:
    run(server, seed, 25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_100))
def test_o03_o04_o05_o06_what_a_lying_server_confirmed_is_read_for_long(
    server: ScriptedServer, seed: int
) -> None:
    run(server, seed, 150)
