"""Tiers are opened for writing by a single function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tieredstore
from tests.kit.tier.flat import BROKER, T0, TableMetadata
from tests.kit.tier.wrappers import KeptProvider
from tieredstore.clock import ManualClock
from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider, WriterEpoch, Written
from tieredstore.contracts.tier_identity import EpochRecord
from tieredstore.contracts.wrapping import WrapperMetadataStore, WrapperProvider
from tieredstore.errors import Corrupt, Fenced, Invalid, Unavailable
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.state_files import LOCK_FILE, StateLock
from tieredstore.tier.writing import TierWriter

SEGMENT = FileSegmentMetadata(f"{BROKER}/T/0", FileSegmentType.COMMIT_LOG, 0)


class Place:
    """A tier and a state directory whose metadata has a journal."""

    def __init__(self, root: Path) -> None:
        self.state = root / "state"
        self.provider = PosixProvider(root / "tier", "cluster-a", fsync=False)
        metadata = self.metadata()
        metadata.load()
        metadata.put_segment(SEGMENT)
        grown = SEGMENT.copy()
        grown.size = 10
        metadata.put_segment(grown)
        metadata.close()
        assert self.provider.open(SEGMENT.id).write(0, [b"x" * 10]) == Written(10)

    def metadata(self) -> DefaultMetadataStore:
        path = self.state / "config" / "tieredStoreMetadata.json"
        return DefaultMetadataStore(path, BROKER, ManualClock(T0))

    def files(self) -> dict[str, bytes]:
        """Return the metadata files by name."""
        found = (self.state / "config").glob("tieredStoreMetadata.json*")
        return {path.name: path.read_bytes() for path in found}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_state_directory_is_locked_then_the_epoch_taken_then_the_metadata_read(
    place: Place,
) -> None:
    steps: list[str] = []

    class Epochs(WrapperProvider):
        def acquire_writer(
            self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
        ) -> WriterEpoch:
            with pytest.raises(Fenced):
                StateLock(place.state).acquire()
            steps.append("epoch")
            return super().acquire_writer(broker_name, take_over=take_over, record=record)

    class Tables(WrapperMetadataStore):
        def load(self) -> None:
            with pytest.raises(Fenced):
                place.provider.acquire_writer(BROKER)
            steps.append("load")
            super().load()

        def flush(self) -> None:
            with pytest.raises(Fenced):
                place.provider.acquire_writer(BROKER)
            steps.append("flush")
            super().flush()

    with TierWriter.acquire(
        Epochs(place.provider), Tables(place.metadata()), BROKER, place.state
    ) as writer:
        assert steps == ["epoch", "load"]
        assert writer.metadata.segment(SEGMENT.id) is not None
        writer.check()
    assert steps == ["epoch", "load", "flush"]
    TierWriter.acquire(place.provider, TableMetadata(), BROKER, place.state).release()


def test_what_another_writer_recorded_until_the_epoch_was_taken_is_known(place: Place) -> None:
    """A writer loads all metadata that another writer recorded before the epoch was acquired."""
    metadata = place.metadata()
    metadata.load()

    class Late(WrapperProvider):
        def acquire_writer(
            self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
        ) -> WriterEpoch:
            other = place.metadata()
            other.load()
            other.add_topic("Late")
            return super().acquire_writer(broker_name, take_over=take_over, record=record)

    with TierWriter.acquire(Late(place.provider), metadata, BROKER, place.state):
        assert [topic.topic for topic in metadata.topics()] == ["Late"]
    again = place.metadata()
    again.load()
    assert again.topic("Late") is not None


def held_state(place: Place) -> Callable[[], None]:
    lock = StateLock(place.state)
    lock.acquire()
    return lock.release


def held_epoch(place: Place) -> Callable[[], None]:
    return place.provider.acquire_writer(BROKER).release


@pytest.mark.parametrize("hold", [held_state, held_epoch])
def test_whoever_is_refused_changes_nothing_and_holds_nothing(
    place: Place, hold: Callable[[Place], Callable[[], None]]
) -> None:
    before = place.files()
    release = hold(place)
    metadata = place.metadata()
    metadata.load()
    with pytest.raises(Fenced, match="process"):
        TierWriter.acquire(place.provider, metadata, BROKER, place.state)
    metadata.close()
    assert place.files() == before
    release()
    TierWriter.acquire(place.provider, metadata, BROKER, place.state).release()


def test_metadata_that_cannot_be_read_leaves_nothing_held(place: Place) -> None:
    for name in ("tieredStoreMetadata.json", "tieredStoreMetadata.json.bak"):
        (place.state / "config" / name).write_bytes(b"{torn")
    before = place.files()
    with pytest.raises(Corrupt):
        TierWriter.acquire(place.provider, place.metadata(), BROKER, place.state)
    assert place.files() == before
    TierWriter.acquire(place.provider, TableMetadata(), BROKER, place.state).release()


def test_what_a_writer_recorded_is_in_the_main_file_when_it_is_released(place: Place) -> None:
    with TierWriter.acquire(place.provider, place.metadata(), BROKER, place.state) as writer:
        assert b'"size":10' not in place.files()["tieredStoreMetadata.json"]
    assert b'"size":10' in place.files()["tieredStoreMetadata.json"]
    writer.release()
    with pytest.raises(Fenced):
        writer.check()


def test_a_writer_that_lost_its_right_writes_no_metadata(place: Place) -> None:
    provider = KeptProvider(MemoryProvider())
    before = place.files()
    with TierWriter.acquire(provider, place.metadata(), BROKER, place.state):
        provider.acquire_writer(BROKER, take_over=True)
    assert place.files() == before


def test_to_take_over_ends_no_process_that_holds_the_state_directory(place: Place) -> None:
    provider = MemoryProvider()
    with TierWriter.acquire(provider, place.metadata(), BROKER, place.state) as writer:
        with pytest.raises(Fenced, match="Wait until it ends, or stop it"):
            TierWriter.acquire(provider, place.metadata(), BROKER, place.state, take_over=True)
        writer.check()
        other = place.state.with_name("other")
        TierWriter.acquire(provider, TableMetadata(), BROKER, other, take_over=True).release()
        with pytest.raises(Fenced):
            writer.check()


def test_the_first_error_is_the_one_that_is_raised(place: Place) -> None:
    class Failing(WrapperMetadataStore):
        def flush(self) -> None:
            raise Unavailable("full")

    def acquire() -> TierWriter:
        return TierWriter.acquire(place.provider, Failing(place.metadata()), BROKER, place.state)

    with pytest.raises(Invalid, match="mine"), acquire():
        raise Invalid("mine")
    with pytest.raises(Unavailable, match="full"), acquire():
        pass
    TierWriter.acquire(place.provider, TableMetadata(), BROKER, place.state).release()


def test_a_state_directory_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    provider: SegmentProvider = MemoryProvider()
    with pytest.raises(Unavailable, match="file"):
        TierWriter.acquire(provider, TableMetadata(), BROKER, tmp_path / "file")
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_tier_is_opened_for_writing_in_one_place() -> None:
    """Only one function opens a tier for writing, so that all take-overs have the same steps."""
    [package] = tieredstore.__path__
    users = [
        str(path.relative_to(package))
        for layer in ("tier", "jobs", "scan", "cli", "spark")
        for path in Path(package, layer).rglob("*.py")
        if ".acquire_writer(" in path.read_text()
    ]
    assert users == ["tier/writing.py"]
