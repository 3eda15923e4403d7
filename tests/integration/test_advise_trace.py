"""`tieredstore advise --trace` replays the trace that a store recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.configured_broker import SteppedClock
from tests.kit.local_stores import START_MS
from tests.kit.tiered_local import TieredLocal

MINUTE_MS = 60_000


@pytest.fixture
def arguments(tmp_path: Path) -> list[object]:
    """Return `advise` arguments for a store with one message per second for 20 minutes. One group
    reads near the end, and another group reads everything after the last message was put."""
    tiered = TieredLocal(
        tmp_path,
        SteppedClock(START_MS),
        tieredStoreTraceEnable="true",
        tieredStorageLevel="FORCE",
        mappedFileSizeCommitLog=1 << 20,
    )
    store = tiered.store
    store.trace.run_round()

    def read(group: str, first: int, last: int) -> None:
        offset = first
        while offset < last:
            offset = store.get_message(group, "orders", 0, offset, 32).next_begin_offset

    for minute in range(20):
        tiered.put("orders", *[b"x" * 200] * 60)
        read("close", minute * 60, minute * 60 + 60)
        tiered.clock.advance(MINUTE_MS - 600)
        store.trace.run_round()
    tiered.upload()
    read("late", 0, 1_200)
    tiered.close()
    config = tmp_path / "broker.conf"
    config.write_text("tieredStorageLevel=FORCE\nreadAheadCacheSizeBytes=67108864\n")
    return [
        "advise", tmp_path / "store", "--tier", tmp_path / "tier", "--state", tmp_path / "store",
        "--config", config, "--object-store",
    ]  # fmt: skip


def test_a_trace_is_replayed(arguments: list[object], tmp_path: Path) -> None:
    trace = tmp_path / "store" / "tieredstore.trace"
    for path in (trace, tmp_path / "store", *trace.iterdir()):
        found = tieredstore(*arguments, "--trace", path, "--output", "json")
        assert found.code == 0, found.err
        report: dict[str, Any] = found.record
        assert report["messages_per_s"] == pytest.approx(1, rel=0.1)
        assert report["readings"] == 2
        now = report["choices"][0]
        # The tier has the messages of `late` that are older than the ten minutes that commits wait,
        # and none of those of `close`.
        times_a_month = 30 * 24 * 60 / 20
        assert now["cold_messages"] == pytest.approx(600 * times_a_month, rel=0.1)


def test_damage_is_told_of(arguments: list[object], tmp_path: Path) -> None:
    [path] = (tmp_path / "store" / "tieredstore.trace").iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    found = tieredstore(*arguments, "--trace", path, "--output", "json")
    assert found.record["assumed"] == ["1 places of the trace are damaged and left out"]


def test_a_trace_and_offsets_are_two_answers_to_one_question(
    arguments: list[object], tmp_path: Path
) -> None:
    found = tieredstore(*arguments, "--trace", tmp_path, "--offsets", tmp_path / "a.json")
    assert found.code == 2
    assert "expected one of them" in found.err


def test_a_folder_without_a_trace_is_refused(arguments: list[object], tmp_path: Path) -> None:
    found = tieredstore(*arguments, "--trace", tmp_path / "tier")
    assert found.code == 2
    assert "tieredStoreTraceEnable" in found.err
