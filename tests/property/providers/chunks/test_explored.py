"""The explorer tries every order of all requests that a few processes send to the chunk log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.explorer import scenarios
from tests.kit.explorer.programs import Setting
from tests.kit.explorer.search import Result, Scenario, explore
from tieredstore.providers.chunks.epochs.epoch import ChunkWriterEpoch
from tieredstore.providers.chunks.epochs.fencing import SharedFenceCheck
from tieredstore.providers.chunks.manifests import segment_manifest
from tieredstore.providers.chunks.manifests.generations import EpochGenerations
from tieredstore.providers.chunks.manifests.names import Generation
from tieredstore.providers.chunks.manifests.views import KnownManifests, Views
from tieredstore.providers.chunks.upkeep.compaction import Compactor
from tieredstore.providers.chunks.writing.gathering import Gatherer

SETTINGS = {
    "a machine that is paused": Setting(clock_stands=True),
    "clocks that continue": Setting(clock_stands=False),
}
HOLD = [
    *(("late_whole", 1), ("late_run", 1), ("late_delete", 1), ("late_seal", 1)),
    *(("alone", 1), ("made_again", 0), ("expiry", 0), ("collected_beside", 0)),
    ("sealed_collected", 0),
    pytest.param("stale_sweep", 0, marks=pytest.mark.slow),  # see SHALLOW_STATES
    *(("swept", 0), ("deleting_beside", 0), ("sent_anew", 2)),
    *(("succession", 0), ("third_life", 0)),
    *(("clean_stop", 1), ("stop_unanswered", 2), ("stop_beside", 0), ("stop_while_keeping", 0)),
    *(("stop_while_deleting", 0), ("looked_at_while_deleted", 0), ("stop_and_claim", 0)),
    *(("stop_and_go_on", 0), ("stopped_twice", 0)),
    *(("paired_write", 0), ("paired_alone", 0), ("paired_units_left", 0)),
    *(("paired_collected_beside", 0), ("paired_made_again", 0), ("paired_sent_anew", 1)),
    *(("paired_succession", 0), ("paired_stop", 1), ("paired_stop_while_keeping", 0)),
    *(("grouped_write", 1), ("grouped_sent_anew", 1), ("grouped_alone", 0), ("grouped_moved", 0)),
    *(("grouped_collected_beside", 0), ("grouped_made_again", 0), ("grouped_stop", 0)),
    *(("grouped_written_beside", 0), ("grouped_succession", 0)),
]
"""Scenarios in which the explorer must find no fault, each with the number of requests that may
fail."""

SHALLOW_STATES = 6_000
"""Number of states of the largest scenario, `stale_sweep`, that CI visits. The full scenario takes
a minute."""


def release_too_late(epoch: ChunkWriterEpoch) -> None:
    """Write the shutdown snapshot too early, while bytes can still be acknowledged."""
    if not epoch.is_lost and not epoch.has_helpers:
        epoch._leave_what_is_there()
    epoch.expect_helpers()
    RELEASE(epoch)


RELEASE = ChunkWriterEpoch.release
Mutant = tuple[type[Any] | Any, str, Callable[..., Any]]
MUTANTS: dict[str, Mutant] = {
    "extents without a successor count": (segment_manifest, "_cut", lambda extent, *_: [extent]),
    "deletions leave no tombstone": (Compactor, "_bury", lambda *_: ""),
    "a sequence number serves again": (
        EpochGenerations,
        "_make",
        lambda own: Generation(own._epoch, 1),
    ),
    "no fence check": (ChunkWriterEpoch, "confirm", lambda _: None),
    "a write that may still come is forgotten": (EpochGenerations, "get_begun", lambda *_: {}),
    "a reader does not look again": (Views, "_holds_still", lambda *_: True),
    "a stop writes its snapshot too early": (ChunkWriterEpoch, "release", release_too_late),
    "a stop writes an old snapshot": (KnownManifests, "note_change", lambda *_: None),
    "units go with their messages": (Compactor, "_store_units", lambda *_: None),
    "units are not looked for when they are deleted": (Compactor, "_has_carried", lambda *_: False),
    "accepted bytes are not stored": (Gatherer, "flush", lambda *_: None),
    "of two runs any counts": (segment_manifest, "rank_run", lambda run: run.end),
    "a group under way is garbage": (Gatherer, "list_sent", lambda *_: []),
}
DELETED_LIFE = "of a deleted life"
LOST = "was acknowledged, but a reader gets"
FOUND = [
    ("extents without a successor count", "late_whole", 0, DELETED_LIFE),
    ("extents without a successor count", "late_run", 0, DELETED_LIFE),
    ("extents without a successor count", "swept", 0, DELETED_LIFE),
    ("extents without a successor count", "made_again", 0, DELETED_LIFE),
    ("extents without a successor count", "late_delete", 0, LOST),
    ("extents without a successor count", "succession", 0, LOST),
    ("deletions leave no tombstone", "alone", 1, DELETED_LIFE),
    ("deletions leave no tombstone", "third_life", 0, DELETED_LIFE),
    ("a sequence number serves again", "stale_sweep", 0, LOST),
    ("a sequence number serves again", "alone", 1, LOST),
    ("no fence check", "paused_write", 0, "the writer of epoch 2 has [0, 2)"),
    ("no fence check", "late_delete", 0, LOST),
    ("a write that may still come is forgotten", "sent_anew", 2, LOST),
    ("a reader does not look again", "collected_beside", 0, LOST),
    ("of two runs any counts", "sealed_collected", 0, LOST),
    ("a stop writes its snapshot too early", "stop_beside", 0, LOST),
    ("a stop writes an old snapshot", "clean_stop", 0, LOST),
    ("a stop writes an old snapshot", "paired_stop", 0, LOST),
    ("a reader does not look again", "paired_collected_beside", 0, LOST),
    ("extents without a successor count", "paired_succession", 0, LOST),
    ("a write that may still come is forgotten", "paired_sent_anew", 2, LOST),
    ("units go with their messages", "paired_units_left", 0, LOST),
    ("units are not looked for when they are deleted", "paired_made_again", 0, DELETED_LIFE),
    ("accepted bytes are not stored", "grouped_write", 0, LOST),
    ("a group under way is garbage", "grouped_written_beside", 0, LOST),
    ("no fence check", "grouped_write", 0, LOST),
    ("extents without a successor count", "grouped_succession", 0, LOST),
    ("units are not looked for when they are deleted", "grouped_made_again", 0, DELETED_LIFE),
    ("a reader does not look again", "grouped_collected_beside", 0, LOST),
]
"""Rules of the chunk log that a test removes one at a time. Each has a scenario, the number of
requests that may fail, and the promise that the chunk log breaks without the rule. The explorer
must find that broken promise."""


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


@pytest.mark.parametrize(("name", "faults"), HOLD)
def test_w03_w08_nobody_who_is_late_disturbs_anybody(name: str, faults: int) -> None:
    assert_holds(explore(scenario(name, Setting(), faults)))


def test_w03_w08_a_sweep_by_an_old_listing_disturbs_nobody_in_the_first_states() -> None:
    result = explore(scenario("stale_sweep", Setting(), 0), max_states=SHALLOW_STATES)
    assert result.broken is None, str(result)
    assert result.state_count >= SHALLOW_STATES


@pytest.mark.parametrize(("mutant", "name", "faults", "what"), FOUND)
def test_the_explorer_finds_a_rule_that_is_left_out(
    mutant: str, name: str, faults: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*MUTANTS[mutant])
    assert_found(explore(scenario(name, Setting(), faults), max_states=100_000), what)


def test_the_explorer_finds_that_a_look_under_way_is_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = SharedFenceCheck.wait

    def join(look: SharedFenceCheck) -> None:
        with look._changed:
            under_way = look._begun if look._begun > look._ended else 0
            look._changed.wait_for(lambda: look._ended >= under_way)
        if not under_way:
            wait(look)

    monkeypatch.setattr(SharedFenceCheck, "wait", join)
    found = explore(scenario("shared_look", Setting(), 0))
    assert_found(found, "'bb' at 0 of b/U/0 (epoch 1) was acknowledged")


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


def test_w08_a_successor_goes_by_what_a_stop_left_or_by_a_listing() -> None:
    assert_holds(
        explore(scenario("clean_stop", Setting(), 1)),
        "second: starts from [0, 4) of b/T/0 (epoch 2)",
        "second: acknowledges 'CC' at 4 of b/T/0 (epoch 2)",
        "second: acknowledges 'CC' at 2 of b/T/0 (epoch 2)",
        "first: acknowledges 'bb' at 2 of b/T/0 (epoch 1)",
    )


def test_w03_a_writer_expires_a_segment_while_its_successor_goes_on() -> None:
    assert_holds(
        explore(scenario("expiry", Setting(), 1)),
        "first: deleted b/T/0 from 0 (epoch 1)",
        "second: acknowledges 'CC' at 4 of b/T/0 (epoch 2)",
        "reader: gets {2: b'bbCC'} of b/T/0",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "faults"),
    [
        *(("one_writer", 2), ("collection", 2), ("expiry", 1)),
        *(("succession", 1), ("collected_beside", 1), ("swept", 1)),
        *(("clean_stop", 2), ("stop_beside", 1), ("stop_while_keeping", 1)),
        *(("stop_while_deleting", 1), ("stop_and_claim", 1), ("stop_and_go_on", 1)),
    ],
)
def test_o03_w08_more_requests_go_wrong(name: str, faults: int) -> None:
    assert_holds(explore(scenario(name, Setting(page_keys=2), faults), max_states=3_000_000))


@pytest.mark.slow
def test_o03_w08_a_million_states_of_a_topic_that_is_made_again() -> None:
    """In one scenario, a topic is recreated. The search visits a million of its more than three
    million states."""
    result = explore(scenario("made_again", Setting(page_keys=2), 1), max_states=1_000_000)
    assert result.broken is None, str(result)
    assert result.is_whole or result.state_count >= 1_000_000
