"""If a broker or cluster name is missing, the error mentions a broker.conf beside the store,
because that file may have the name."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.kit.command_line import one_line, tieredstore
from tests.kit.growing_tier import GrowingTier
from tests.kit.tier_builder import small_tier

NAMES = (
    "offload {store} --tier {new} --state {state}",
    "backfill --from {new} --tier {new} --state {store}",
    "tier reset orders --tier {tier} --state {store}",
    "rebuild metadata --tier {tier} --state {store}",
    "ls --tier {tier} --state {store}",
    "report --tier {tier} --state {store} --to {new}",
    "restore --tier {tier} --store {store}",
)
"""Commands that need a broker or cluster name and do not get one. The existing tier has two
clusters, the new tier has none."""
OPTIONS = {
    "offload {store} --state {state}": "'--tier'",
    "offload {store} --tier {new}": "'--state'",
    "advise {store}": "'--tier'",
    "health --state {store}": "'--tier'",
    "restore --store {store}": "'--tier'",
    "tier expire orders --before today --state {store}": "'--tier'",
}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    tier = small_tier(tmp_path)
    (tmp_path / "tier" / "212d6b50_DefaultCluster" / "b" / "orders").mkdir(parents=True)
    store = tmp_path / "a b" / "store"
    (store / "commitlog").mkdir(parents=True)
    (store / "config").mkdir()
    (store / "config" / "tieredStoreMetadata.json").write_text("{}")
    return {
        "tier": tier.url,
        "new": str(tmp_path / "new"),
        "store": str(store),
        "state": str(tmp_path / "new-state"),
    }


def words_of(line: str, places: dict[str, str]) -> list[str]:
    return [word.format(**places) for word in line.split()]


@pytest.mark.parametrize("line", NAMES)
def test_names_of_cluster_and_broker(
    tmp_path: Path, places: dict[str, str], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert "maybe" not in one_line(tieredstore(*words_of(line, places)))
    conf = tmp_path / "a b" / "broker.conf"
    conf.write_text("brokerName=b\nbrokerClusterName=cluster-a\n")
    ran = tieredstore(*words_of(line, places))
    assert ran.code == 2
    assert one_line(ran).endswith(f"; maybe --config {shlex.quote(str(conf))}")
    # Who names one is offered no other.
    given = tieredstore(*words_of(line, places), "--config", str(conf))
    assert "maybe" not in given.err


@pytest.mark.parametrize(("line", "option"), OPTIONS.items())
def test_tier_and_state(tmp_path: Path, places: dict[str, str], line: str, option: str) -> None:
    assert "may say it" not in one_line(tieredstore(*words_of(line, places)))
    conf = tmp_path / "a b" / "conf" / "broker.conf"
    conf.parent.mkdir()
    conf.write_text("brokerName=b\n")
    ran = tieredstore(*words_of(line, places))
    assert ran.code == 2
    assert f"Missing option {option}" in one_line(ran)
    assert f"; {shlex.quote(str(conf))} may say it" in one_line(ran)


def test_a_broker_conf_of_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "maybe" not in one_line(tieredstore("broker"))
    (tmp_path / "broker.conf").touch()
    assert f"; maybe --config {tmp_path}/broker.conf" in one_line(tieredstore("broker"))
    state = GrowingTier(tmp_path / "grown").root / "state"
    (state.parent / "broker.conf").touch()
    adopt = ("tier", "adopt", "--tier", "x", "--state", state)
    assert f"; maybe --config {state.parent}/broker.conf" in one_line(tieredstore(*adopt))
