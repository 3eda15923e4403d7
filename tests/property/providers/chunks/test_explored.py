"""The chunk log under the explorer: every order of all requests of a few processes."""

from __future__ import annotations

import pytest

from tieredstore.providers.chunks.epoch import ChunkWriterEpoch
from tieredstore.providers.chunks.looks import SharedLook
from tieredstore.testing.explorer import scenarios
from tieredstore.testing.explorer.programs import Setting
from tieredstore.testing.explorer.search import Result, Scenario, explore

SETTINGS = {
    "a machine that is paused": Setting(clock_stands=True),
    "clocks that go on": Setting(clock_stands=False),
}
FOUND = {
    ("late_whole", 0): "'aa' at 0 of b/T/0 (epoch 1), of a deleted life",
    ("late_run", 0): "'aa' at 0 of b/T/0 (epoch 1), of a deleted life",
    ("stale_sweep", 0): "'AA' at 0 of b/T/0 (epoch 1) was acknowledged; a reader gets b'??'",
    ("late_seal", 0): "cannot write 'CC' at 4 of b/T/0 (epoch 2): the seal",
    ("late_delete", 1): "'BB' at 0 of b/T/0 (epoch 2) was acknowledged; a reader gets b'??'",
    ("alone", 1): "'aa' at 0 of b/T/0 (epoch 1), of a deleted life",
    ("swept", 0): "'aa' at 0 of b/T/0 (epoch 1), of a deleted life",
    ("made_again", 0): "'bb' at 2 of b/T/0 (epoch 1), of a deleted life",
    ("succession", 0): "'EE' at 4 of b/T/0 (epoch 3) was acknowledged; a reader gets b'??'",
}
"""What is wrong today, by scenario and number of requests that go wrong."""
FOUND_UNCONFIRMED = {
    "paused_write": "'bb' at 2 of b/T/0 (epoch 1) was acknowledged; a reader gets b'CC'",
    "late_delete": "'BB' at 2 of b/T/0 (epoch 2) was acknowledged; a reader gets b'??'",
}
"""What is wrong when nobody looks at the epoch before it counts on something."""


def scenario(name: str, setting: Setting, faults: int) -> Scenario:
    made = getattr(scenarios, name)(setting, faults)
    assert isinstance(made, Scenario)
    return made


def assert_holds(result: Result, *said: str) -> None:
    assert result.broken is None, str(result)
    assert result.is_whole, str(result)
    assert set(said) <= result.said


def assert_found(result: Result, what: str) -> None:
    assert result.broken is not None, str(result)
    assert what in result.broken, str(result)
    assert len(result.steps) <= str(result).count("\n")


@pytest.mark.parametrize(("name", "faults"), FOUND)
def test_the_explorer_finds_what_is_wrong_today(name: str, faults: int) -> None:
    """Each is a fault of names that are used again (`docs/formats/chunk-log.md`, "What remains").
    When the code is right this test fails; then a mutant puts the fault back."""
    found = explore(scenario(name, Setting(), faults), max_states=100_000)
    assert_found(found, FOUND[name, faults])


@pytest.mark.parametrize("name", FOUND_UNCONFIRMED)
def test_the_explorer_finds_that_nobody_looks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkWriterEpoch, "confirm", lambda _: None)
    assert_found(explore(scenario(name, Setting(), 0)), FOUND_UNCONFIRMED[name])


def test_the_explorer_finds_that_a_look_under_way_is_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = SharedLook.wait

    def join(look: SharedLook) -> None:
        with look._changed:
            under_way = look._begun if look._begun > look._ended else 0
            look._changed.wait_for(lambda: look._ended >= under_way)
        if not under_way:
            wait(look)

    monkeypatch.setattr(SharedLook, "wait", join)
    found = explore(scenario("shared_look", Setting(), 0))
    assert_found(found, "the writer of epoch 2 goes by [0, 0)")


def test_w07_queues_that_share_a_look_are_told_nothing_that_is_not_so() -> None:
    assert_holds(
        explore(scenario("shared_look", Setting(), 0)),
        "zombie: acknowledges 'aa' at 0 of b/T/0 (epoch 1)",
        "zombie, beside: acknowledges 'bb' at 0 of b/U/0 (epoch 1)",
        "successor: acknowledges 'AA' at 0 of b/T/0 (epoch 2)",
        "successor: acknowledges 'AA' at 2 of b/T/0 (epoch 2)",
    )


def test_w03_a_writer_merges_beside_its_writes_while_its_successor_goes_on() -> None:
    assert_holds(
        explore(scenario("merging_beside", Setting(), 0)),
        "first: acknowledges 'cc' at 4 of b/T/0 (epoch 1)",
        "second: acknowledges 'CC' at 6 of b/T/0 (epoch 2)",
    )


@pytest.mark.parametrize("setting", SETTINGS)
def test_w07_a_paused_writer_is_told_nothing_that_is_not_so(setting: str) -> None:
    assert_holds(
        explore(scenario("paused_write", SETTINGS[setting], 1)),
        "zombie: acknowledges 'bb' at 2 of b/T/0 (epoch 1)",
        "successor: acknowledges 'CC' at 2 of b/T/0 (epoch 2)",
        "successor: acknowledges 'CC' at 4 of b/T/0 (epoch 2)",
    )


@pytest.mark.parametrize("setting", SETTINGS)
def test_o03_one_writer_its_collector_and_a_reader(setting: str) -> None:
    assert_holds(
        explore(scenario("one_writer", SETTINGS[setting], 1)),
        "writer: acknowledges 'cc' at 4 of b/T/0 (epoch 1)",
        "reader: gets {0: b'aabbcc'} of b/T/0",
    )


@pytest.mark.parametrize("setting", SETTINGS)
def test_w03_a_writer_collects_while_its_successor_merges(setting: str) -> None:
    assert_holds(
        explore(scenario("collection", SETTINGS[setting], 1)),
        "second: acknowledges 'CC' at 4 of b/T/0 (epoch 2)",
    )


def test_w03_a_writer_expires_a_segment_while_its_successor_goes_on() -> None:
    assert_holds(
        explore(scenario("expiry", Setting(), 1)),
        "first: deleted b/T/0 from 0 (epoch 1)",
        "second: acknowledges 'CC' at 4 of b/T/0 (epoch 2)",
        "reader: gets {2: b'bbCC'} of b/T/0",
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one_writer", "collection", "expiry"])
def test_o03_two_requests_go_wrong(name: str) -> None:
    assert_holds(explore(scenario(name, Setting(page_keys=2), 2), max_states=3_000_000))
