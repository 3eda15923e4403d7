"""A state directory of another tier, and a broker.conf that lies beside a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.command_line import one_line, tieredstore
from tests.kit.growing_tier import GrowingTier
from tests.kit.tier_builder import BuiltTier, small_tier


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    grown = GrowingTier(tmp_path_factory.mktemp("other"))
    grown.append("elsewhere", 0, 3)
    return grown.root / "state"


@pytest.mark.parametrize(
    "verb",
    [
        "ls", "stat", "cat --topic orders", "query --topic orders --key orders-0-1",
        "sql .tables", "report --to report", "export --format parquet --to table",
    ],
)  # fmt: skip
def test_a_state_of_another_tier_is_an_error_and_no_empty_answer(
    tier: BuiltTier, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    ran = tieredstore(*verb.split(), "--tier", tier.url, "--state", other)
    assert (ran.code, ran.out) == (2, "")
    assert "the state directory knows none of the segments that are there" in one_line(ran)


def test_a_state_that_knows_a_part_is_taken(tmp_path: Path) -> None:
    grown = GrowingTier(tmp_path)
    grown.append("orders", 0, 3)
    ran = tieredstore("ls", "--tier", grown.url, "--state", grown.root / "state")
    assert (ran.code, ran.err) == (0, "")


def test_a_broker_conf_beside_the_store_is_named_where_names_are_missing(tmp_path: Path) -> None:
    store = tmp_path / "a b" / "store"
    store.mkdir(parents=True)
    arguments = ("offload", store, "--tier", tmp_path / "tier", "--state", tmp_path / "state")
    assert "--config '" not in one_line(tieredstore(*arguments))
    (store.parent / "broker.conf").write_text("brokerName=b\n")
    said = one_line(tieredstore(*arguments))
    assert "give --broker (or brokerName in --config) and --cluster" in said
    assert f"; maybe --config '{store.parent / 'broker.conf'}'" in said
