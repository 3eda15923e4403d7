"""Environment variables set the defaults of options, except for commands that delete data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.kit.command_line import files_of, one_line, tieredstore
from tests.kit.tier_builder import BROKER, BuiltTier, small_tier
from tieredstore.cli.main import VERBS, cli

WITH_DEFAULTS = {
    *(
        "ls",
        "stat",
        "cat",
        "query",
        "sql",
        "advise",
        "verify",
        "export",
        "report",
        "health",
        "doctor",
        "offload",
    ),
    "config show",
}


@pytest.fixture
def tier(tmp_path: Path) -> BuiltTier:
    return small_tier(tmp_path)


@pytest.fixture
def environment(tier: BuiltTier, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("TIEREDSTORE_TIER", tier.url)
    monkeypatch.setenv("TIEREDSTORE_STATE", str(tier.state))
    return monkeypatch


def origins() -> dict[str, tuple[str | None, str]]:
    rows = tieredstore("config", "show", "tier", "state", "config", "--output", "ndjson").rows
    return {row["key"]: (row["value"], row["origin"]) for row in rows}


def test_the_environment_stands_for_the_options(
    tier: BuiltTier, environment: pytest.MonkeyPatch
) -> None:
    conf = tier.root / "broker.conf"
    conf.write_text("brokerName=nobody\n")
    assert tieredstore("ls", "--output", "ndjson").code == 0
    assert tieredstore("health", "--output", "json").record["status"] == "up"
    environment.setenv("TIEREDSTORE_CONFIG", str(conf))
    assert "no broker 'nobody'" in one_line(tieredstore("ls"))
    assert tieredstore("ls", "--broker", BROKER).code == 0
    assert origins() == {
        "tier": (tier.url, "TIEREDSTORE_TIER"),
        "state": (str(tier.state), "TIEREDSTORE_STATE"),
        "config": (str(conf), "TIEREDSTORE_CONFIG"),
    }


@pytest.mark.usefixtures("environment")
def test_the_command_line_beats_it(tier: BuiltTier, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert f"state {nowhere}: no such" in one_line(tieredstore("ls", "--state", nowhere))
    assert "no such directory" in one_line(tieredstore("ls", "--tier", nowhere))


def test_its_state_is_not_that_of_another_tier(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = small_tier(tmp_path / "other")
    environment.setenv("TIEREDSTORE_STATE", str(tmp_path / "nowhere"))
    assert "nowhere" in one_line(tieredstore("ls"))
    assert tieredstore("ls", "--tier", other.root / "tier").code == 0
    environment.delenv("TIEREDSTORE_TIER")
    assert "nowhere" in one_line(tieredstore("ls", "--tier", other.root / "tier"))


def test_an_empty_variable_counts_as_none(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TIEREDSTORE_STATE", "")
    assert tieredstore("ls").code == 0
    assert "Missing option '--state' (or set TIEREDSTORE_STATE, or" in one_line(
        tieredstore("health")
    )
    environment.setenv("TIEREDSTORE_TIER", "")
    assert "Missing option '--tier' (or set TIEREDSTORE_TIER, or choose a --profile)" in one_line(
        tieredstore("ls")
    )
    assert origins()["tier"] == (None, "default")


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for verb in VERBS:
        command = cli.get_command(context, verb)
        assert command is not None
        if not isinstance(command, click.Group):
            yield verb, command
            continue
        for name in command.list_commands(context):
            part = command.get_command(context, name)
            assert part is not None
            yield f"{verb} {name}", part


def test_only_verbs_that_delete_nothing_have_defaults() -> None:
    found = {
        verb
        for verb, command in commands()
        for option in command.params
        if (option.name or "").endswith("__tier") and not option.required
    }
    assert found == WITH_DEFAULTS


DELETING = {
    "tier delete": ["orders"],
    "tier expire": ["orders", "--before", "now"],
    "tier skip": ["orders", "--queue", "0", "--to", "900"],
    "tier reset": ["orders"],
    "rebuild index": ["--force"],
    "rebuild metadata": ["--force"],
    "compact index": [],
    "copy": ["--to", "TIER", "--to-state", "STATE", "--force", "--yes"],
}


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("verb", DELETING)
def test_a_verb_that_deletes_never_takes_its_target_from_there(tier: BuiltTier, verb: str) -> None:
    before = files_of(tier.root)
    places = {"TIER": tier.url, "STATE": str(tier.state)}
    words = [places.get(word, word) for word in DELETING[verb]]
    yes = ["--yes"] if verb.startswith("tier ") else []
    ran = tieredstore(*verb.split(), *words, *yes)
    assert ran.code == 2
    assert "Missing option '--" in one_line(ran)
    if verb in {"tier delete", "rebuild metadata"}:
        named = one_line(tieredstore(*verb.split(), *words, *yes, "--tier", tier.url))
        assert "Missing option '--state'; see" in named
    assert files_of(tier.root) == before


@pytest.mark.parametrize("verb", [["ls"], ["verify"], ["stat"], ["cat", "--topic", "orders"]])
def test_a_tier_is_the_path_of_its_folder(
    tier: BuiltTier, verb: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tier.root)
    for path in ("tier", "./tier", tier.root / "tier"):
        ran = tieredstore(*verb, "--tier", path, "--state", "state")
        assert (ran.code, ran.err) == (0, "")
    assert "file:///dir" in one_line(tieredstore(*verb, "--tier", "s3:tier"))
