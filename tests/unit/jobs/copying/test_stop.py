"""A copy stops within the time allowed by the target's provider."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.jobs.copy import contents, posix
from tests.kit.tier_builder import BuiltTier, small_tier
from tieredstore.contracts.segment import (
    Buffer,
    FileSegment,
    SegmentProvider,
    WriterEpoch,
    WriteResult,
)
from tieredstore.contracts.tier_identity import EpochRecord
from tieredstore.contracts.wrapping import WrapperEpoch, WrapperProvider, WrapperSegment
from tieredstore.errors import Unavailable
from tieredstore.jobs.copying.ends import run_copy
from tieredstore.jobs.copying.target import CopyTarget
from tieredstore.jobs.options import CopyTierOptions
from tieredstore.jobs.start import start_run
from tieredstore.jobs.stopping import StopSignal
from tieredstore.jobs.target import TierTarget
from tieredstore.scan.location import locate

LONGEST_S = 60


class StoppingProvider(WrapperProvider):
    """Provider whose writes hang until the shutdown deadline begins. `steps` records the
    notifications in order."""

    def __init__(self, wrapped: SegmentProvider, *, hangs: bool) -> None:
        super().__init__(wrapped)
        self.hangs = hangs
        self.steps: list[str] = []
        self.waits = threading.Event()
        self._begun = threading.Event()

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return _Segment(segment, self)

    def wait(self) -> None:
        if self.hangs:
            self.waits.set()
            assert self._begun.wait(LONGEST_S), "the stop was not announced to it"
            raise Unavailable("injected: the provider stops")

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> WriterEpoch:
        epoch = super().acquire_writer(broker_name, take_over=take_over, record=record)
        return _Epoch(epoch, self.steps)

    def begin_stop(self) -> None:
        self.steps.append("begin_stop")
        self._begun.set()

    def close(self) -> None:
        self.steps.append("close")
        super().close()


class _Segment(WrapperSegment):
    def __init__(self, wrapped: FileSegment, provider: StoppingProvider) -> None:
        super().__init__(wrapped)
        self._provider = provider

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        self._provider.wait()
        return super().write(position, buffers)


class _Epoch(WrapperEpoch):
    def __init__(self, wrapped: WriterEpoch, steps: list[str]) -> None:
        super().__init__(wrapped)
        self._steps = steps

    def release(self) -> None:
        self._steps.append("release")
        super().release()


@pytest.fixture
def built(tmp_path: Path) -> BuiltTier:
    return small_tier(tmp_path / "source")


def use_provider(patch: pytest.MonkeyPatch, root: Path, *, hangs: bool) -> StoppingProvider:
    """Wrap the provider of the copy's target in a StoppingProvider."""
    provider = StoppingProvider(posix(root), hangs=hangs)
    patch.setattr(TierTarget, "open_provider", lambda *_, **__: provider)
    return provider


def run(built: BuiltTier, root: Path, stop: StopSignal | None = None) -> dict[str, object]:
    """Copy a tier in the same way as the command `copy`."""
    tier = locate((built.root / "tier").as_uri(), state=built.root / "state")
    request = CopyTierOptions(
        (root / "tier").as_uri(), to_state=root / "state", workers=2, stop=stop
    )
    with start_run("copy", {}, has_journal=False) as job:
        return run_copy(job, tier, request)


def test_the_time_for_a_stop_begins_before_the_right_is_given_back(
    built: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = use_provider(monkeypatch, tmp_path / "target", hangs=False)
    run(built, tmp_path / "target")
    assert provider.steps == ["begin_stop", "release", "close"]


def test_a_copy_that_fails_gives_its_right_back_in_that_time_too(
    built: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = use_provider(monkeypatch, tmp_path / "target", hangs=False)
    monkeypatch.setattr(CopyTarget, "load", fail)
    with pytest.raises(Unavailable, match="injected"):
        run(built, tmp_path / "target")
    assert provider.steps == ["begin_stop", "release", "close"]


def test_a_copy_whose_target_never_answers_stops_when_it_is_told_to(
    built: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = use_provider(monkeypatch, tmp_path / "target", hangs=True)
    stop = StopSignal()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, built, tmp_path / "target", stop)
        assert provider.waits.wait(LONGEST_S)
        assert provider.steps == []
        stop.set()
        report = running.result()
    assert provider.steps[0] == "begin_stop"
    assert provider.steps[-2:] == ["release", "close"]
    assert report["stopped"]
    assert report["failed"] == []
    use_provider(monkeypatch, tmp_path / "target", hangs=False)
    assert not run(built, tmp_path / "target")["stopped"]
    assert contents(posix(tmp_path / "target")) == contents(built.provider)


def fail(_: object) -> None:
    raise Unavailable("injected")
