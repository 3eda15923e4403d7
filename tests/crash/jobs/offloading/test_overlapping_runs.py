"""Two offloads of one store overlap. A run that is refused or late causes no loss of the other
run's data. With cron, runs overlap whenever a run takes longer than the interval between runs."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.kit.local_stores import plain, running, small_config
from tests.kit.paths import ROOT
from tests.kit.tier_builder import BROKER, CLUSTER
from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import STATUS_DELETED, FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider, WriterEpoch
from tieredstore.contracts.tier_identity import EpochRecord
from tieredstore.contracts.wrapping import WrapperProvider
from tieredstore.errors import Fenced
from tieredstore.jobs.offloading.job import offload_store
from tieredstore.jobs.offloading.report import OffloadReport
from tieredstore.jobs.options import OffloadOptions
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.findings import Finding
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.verify.verification import verify

COUNT = 5


class World:
    """A broker's store, and the location of its tier. All runs use `options`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = small_config(root / "store")
        self.conf = root / "broker.conf"
        self.conf.write_text(
            f"brokerName={BROKER}\nbrokerClusterName={CLUSTER}\n"
            "tieredStoreIndexFileMaxHashSlotNum=8\ntieredStoreIndexFileMaxIndexNum=64\n"
        )

    def put(self, topic: str) -> None:
        with running(self.store, SYSTEM_CLOCK) as store:
            for number in range(COUNT):
                store.put_message(plain(topic, number=number))
            store.wait_until_dispatched()

    def offload(self) -> OffloadReport:
        tier = f"file://{self.root}/tier"
        return offload_store(
            OffloadOptions(tier, self.root / "store", state=self.root / "state", config=self.conf)
        )

    def metadata(self) -> DefaultMetadataStore:
        path = self.root / "state" / "config" / "tieredStoreMetadata.json"
        metadata = DefaultMetadataStore(path, BROKER)
        metadata.load()
        return metadata

    def known(self) -> set[tuple[str, int]]:
        return {(entry.path, entry.size) for entry in self.metadata().segments()}

    def check(self, *topics: str) -> None:
        """Check that the tier has all messages, that the metadata lists them, and that no data is
        damaged."""
        provider = PosixProvider(self.root / "tier", CLUSTER)
        findings: list[Finding] = []
        catalogue = load_catalogue(provider, self.metadata(), broker=BROKER)
        report = verify(provider, catalogue, findings.append)
        assert (report.messages, findings) == (COUNT * len(topics), [])
        assert {queue.topic for queue in catalogue.queues} == set(topics)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.put("Old")
    assert world.offload().messages == COUNT
    return world


class Hooked(WrapperProvider):
    """Provider that calls `before` just before a process acquires the writer epoch."""

    def __init__(self, wrapped: SegmentProvider, before: Callable[[], None]) -> None:
        super().__init__(wrapped)
        self._before = before

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> WriterEpoch:
        self._before()
        return super().acquire_writer(broker_name, take_over=take_over, record=record)


def hook(patch: pytest.MonkeyPatch, before: Callable[[], None]) -> None:
    def provider(config: StoreConfig) -> Hooked:
        return Hooked(PosixProvider.from_config(config), before)

    patch.setattr(registry, "segment_provider", provider)


@contextmanager
def other_offload(world: World) -> Iterator[Callable[[], None]]:
    """Start an offload in another process and wait until it owns the writer epoch. Yield a function
    that lets the offload upload."""
    root = world.root
    arguments = [root / "store", root, world.conf]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.kit.killable.waiting_offload", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "writer\n"

        @functools.cache
        def upload() -> None:
            print("go", file=process.stdin, flush=True)
            assert process.stdout is not None
            assert process.stdout.readline() == "uploaded\n"

        try:
            yield upload
        finally:
            process.kill()


def test_an_offload_that_is_refused_leaves_the_metadata_of_the_other_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put("New")
    with other_offload(world) as upload:
        with monkeypatch.context() as patch:
            hook(patch, upload)  # as late as possible, with the data read before
            with pytest.raises(Fenced):
                world.offload()
        upload()
        known = world.known()
        assert {path for path, _ in known} >= {f"{BROKER}/Old/0", f"{BROKER}/New/0"}
        with pytest.raises(Fenced):
            world.offload()
        assert world.known() == known
    report = world.offload()
    assert (report.messages, report.failed) == (0, [])
    world.check("Old", "New")


@pytest.mark.parametrize(
    ("path", "kind", "base_offset"),
    [
        (f"{BROKER}/Old/0", FileSegmentType.CONSUME_QUEUE, 20_000),
        (f"{BROKER}/New/0", FileSegmentType.COMMIT_LOG, 0),  # of an earlier life of the topic
    ],
)
def test_a_deletion_that_is_left_over_is_finished_by_what_the_last_writer_knew(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    kind: FileSegmentType,
    base_offset: int,
) -> None:
    metadata = world.metadata()
    metadata.put_segment(FileSegmentMetadata(path, kind, base_offset, status=STATUS_DELETED))
    metadata.close()
    world.put("New")

    def other_run() -> None:
        patch.undo()
        with suppress(Fenced):  # it has to wait: the state directory is taken before the epoch
            assert world.offload().failed == []

    with monkeypatch.context() as patch:
        hook(patch, other_run)
        assert world.offload().failed == []
    world.check("Old", "New")
