"""Tests of the comparison between a state directory and its tier at a broker's start."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from tests.kit.paths import ROOT
from tieredstore.contracts.tier_identity import TierMark, WriterKind, WriterMark
from tieredstore.tier.identity.belonging import refuse
from tieredstore.tier.identity.comparison import Contents, Facts, Outcome, TierMemory, compare


def mark(token: str, kind: WriterKind = WriterKind.STORE) -> WriterMark:
    return WriterMark("X", token, kind, "store-1")


def memory(number: int, token: str, **changes: object) -> TierMemory:
    found = TierMemory(broker="b", identity="X", number=number, token=token)
    return msgspec.structs.replace(found, **changes)


TIER = TierMark("X", 2, {1: mark("t1"), 2: mark("t2")})
FACTS = Facts("b", TIER, memory(2, "t2"), memory(2, "t2"), knows_history=True)
JOB = replace(TIER, number=3, writers={**TIER.writers, 3: mark("j3", WriterKind.JOB)})
STARTED = replace(TIER, number=3, writers={**TIER.writers, 3: mark("s3", WriterKind.STARTING)})
LATER = replace(TIER, number=3, writers={**TIER.writers, 3: mark("t3")})
OLD_VERSION = replace(TIER, number=3, writers={**TIER.writers, 3: None})
AHEAD = Contents(ahead=("T/0",))
NOTHING = TierMark(is_empty=True)

CASES: list[tuple[Outcome, Facts]] = [
    (Outcome.SAME, FACTS),
    (Outcome.SAME, replace(FACTS, contents=Contents())),
    (Outcome.SAME, replace(FACTS, state=None)),
    (Outcome.SAME, replace(FACTS, tier=LATER, store=memory(2, "t2", attempts=("t3",)), state=None)),
    (Outcome.AFTER_JOBS, replace(FACTS, tier=JOB)),
    (Outcome.UNMARKED, replace(FACTS, tier=TierMark(None, 2))),
    (Outcome.UNMARKED, replace(FACTS, store=None, state=None)),
    (Outcome.UNMARKED, replace(FACTS, store=None)),
    (Outcome.UNMARKED, replace(FACTS, tier=OLD_VERSION)),
    (Outcome.NEW_TIER, Facts("b", NOTHING)),
    (Outcome.OTHER_NAME, replace(FACTS, broker="c")),
    (Outcome.NO_NAME, Facts("b", NOTHING, is_store_empty=True, other_broker="a")),
    (Outcome.OTHER_NAME, Facts("b", NOTHING, knows_history=True, known_broker="c")),
    (Outcome.TIER_EMPTY, replace(FACTS, tier=NOTHING)),
    (Outcome.TIER_EMPTY, replace(FACTS, tier=NOTHING, is_told=True)),
    (Outcome.NEW_TIER, replace(FACTS, tier=NOTHING, knows_history=False)),
    (Outcome.TIER_EMPTY, replace(FACTS, tier=NOTHING, knows_history=False, state=None)),
    (
        Outcome.ADOPTED,
        replace(FACTS, tier=NOTHING, knows_history=False, state=None, is_told=True),
    ),
    (Outcome.TIER_MISSING, replace(FACTS, tier=replace(NOTHING, is_missing=True))),
    (Outcome.TIER_EMPTY, Facts("b", NOTHING, knows_history=True)),
    (Outcome.OTHER_TIER, replace(FACTS, tier=replace(TIER, identity="Y"))),
    (Outcome.ADOPTED, replace(FACTS, tier=replace(TIER, identity="Y"), state=None, is_told=True)),
    (Outcome.OTHER_STATE, replace(FACTS, state=memory(2, "t2", identity="Y"))),
    (Outcome.OTHER_STATE, replace(FACTS, tier=replace(TIER, identity="Y"), is_told=True)),
    (Outcome.STORE_BEHIND, replace(FACTS, tier=LATER)),
    (Outcome.STORE_BEHIND, replace(FACTS, tier=LATER, is_told=True)),
    (Outcome.STORE_BEHIND, replace(FACTS, contents=AHEAD)),
    (Outcome.STORE_BEHIND, replace(FACTS, contents=Contents(beyond=("T/0",)))),
    (
        Outcome.OLDER_TIER,
        replace(FACTS, store=memory(5, "t5"), contents=Contents(beyond=("T/0",))),
    ),
    (Outcome.STATE_BEHIND, replace(FACTS, contents=Contents(hidden=("T/0",)))),
    (Outcome.AFTER_JOBS, replace(FACTS, tier=STARTED)),
    (Outcome.AFTER_JOBS, replace(FACTS, tier=replace(STARTED, number=8, older=8))),
    (Outcome.STORE_BEHIND, replace(FACTS, tier=replace(STARTED, older=8, older_store=3))),
    (Outcome.OLDER_STATE, replace(FACTS, state=memory(1, "t1"))),
    (
        Outcome.STATE_BEHIND,
        replace(FACTS, state=memory(1, "t1"), contents=Contents(unknown=("s",))),
    ),
    (Outcome.OLDER_TIER, replace(FACTS, store=memory(5, "t5"))),
    (Outcome.OLDER_TIER, replace(FACTS, store=memory(2, "another"))),
    (Outcome.OLDER_TIER, replace(FACTS, store=memory(3, "lost", attempts=("t2",)))),
    (Outcome.TIER_BEHIND, replace(FACTS, store=memory(5, "t5"), contents=Contents(gaps=("q",)))),
    (
        Outcome.ADOPTED,
        replace(FACTS, store=memory(5, "t5"), is_told=True, contents=Contents(gaps=("q",))),
    ),
    (
        Outcome.TIER_BEHIND,
        replace(FACTS, store=memory(5, "t5"), is_told=True, contents=Contents(missing=("s",))),
    ),
    (Outcome.STORE_EMPTY, replace(FACTS, store=None, is_store_empty=True)),
    (Outcome.ADOPTED, replace(FACTS, store=None, is_store_empty=True, is_told=True)),
    (
        Outcome.OTHER_STORE,
        replace(FACTS, store=None, contents=Contents(differing=("T/0",))),
    ),
    (Outcome.SAME, replace(FACTS, tier=LATER, has_store=False, store=None)),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_each_case_has_its_outcome(number: int) -> None:
    outcome, facts = CASES[number]
    assert compare(facts).outcome is outcome


def test_every_outcome_has_a_case_and_a_row_on_the_page() -> None:
    assert {outcome for outcome, _ in CASES} == set(Outcome)
    page = (ROOT / "docs" / "belonging.md").read_text()
    rows = set(re.findall(r"^\| ([a-z ,]+) \| .* \| .* \|$", page, re.MULTILINE))
    assert {outcome.value for outcome in Outcome} <= rows


def test_every_refusal_says_what_was_found_and_what_to_do() -> None:
    for _, facts in CASES:
        verdict = compare(facts)
        if verdict.starts:
            continue
        text = str(refuse(verdict, "file:///tier", "b", "/store", "process 7"))
        assert "broker 'b', store /store" in text
        assert "process 7" in text
        assert re.search(r"Put |Mount |Set |Correct |Give |When ", text)
        assert verdict.outcome.value in text
