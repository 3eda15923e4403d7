"""Each verb is run with a state directory of another tier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.kit.command_line import one_line, tieredstore
from tests.kit.growing_tier import GrowingTier
from tests.kit.tier_builder import small_tier
from tieredstore import jobs
from tieredstore.cli.main import cli

READING = (
    "ls", "stat", "cat --topic orders", "query --topic orders --key orders-0-1", "sql .tables",
    "verify", "verify --topic orders", "verify --seal", "health", "health --list",
    "report --to report", "export --format parquet --to table",
    "advise {store} --offsets {offsets}1@-2h --offsets {offsets}2@-1h",
)  # fmt: skip
WRITING = (
    "rebuild index", "rebuild index --force", "compact index", "tier delete orders --yes",
    "tier expire orders --before 2020-01-01 --yes", "tier skip orders --queue 0 --to 9 --yes",
    "tier reset orders --yes", "tier adopt --config {conf} --yes", "rebuild metadata",
    "backfill --from table --config {conf}", "offload {store} --config {conf}",
    "broker --read-only",
)  # fmt: skip
STATELESS = frozenset({"profile set", "config show"})
"""Verbs that have the option `--state` and open no tier."""
BETWEEN = ("copy --from {tier} --from-state {other} --to {empty} --to-state {empty}-state",)
LOCKS = frozenset({".writer", ".tier", "tieredstore.lock", "tieredStoreMetadata.json.bak"})
"""Files that a writer locks before its first write."""


def contents(folder: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in LOCKS
    }


@pytest.mark.parametrize("line", [*READING, *WRITING, *BETWEEN])
def test_a_state_of_another_tier_is_an_error_and_does_no_harm(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    tier = small_tier(tmp_path / "one")
    grown = GrowingTier(tmp_path / "other")
    grown.append("elsewhere", 0, 3)
    other = grown.root / "state"
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=broker-a\nbrokerClusterName=cluster-a\n")
    for number in "12":
        (tmp_path / f"offsets{number}").write_text('{"offsetTable":{"orders@g":{"0":1}}}')
    jobs.export(grown.url, tmp_path / "table", format="parquet")
    places = {
        "tier": tier.url,
        "other": str(other),
        "conf": str(conf),
        "store": str(golden / "local-plain"),
        "empty": str(tmp_path / "empty"),
        "offsets": str(tmp_path / "offsets"),
    }
    words = [word.format(**places) for word in line.split()]
    if line not in BETWEEN:
        words += ["--tier", tier.url, "--state", str(other)]
    before = contents(tier.root / "tier"), contents(other)
    ran = tieredstore(*words)
    assert (ran.code, ran.out) == (2, ""), ran.err
    if line in (*READING, *BETWEEN):
        assert "the state directory knows none of the segments that are there" in one_line(ran)
    assert (contents(tier.root / "tier"), contents(other)) == before
    assert not (tmp_path / "empty").exists()


def test_each_verb_that_takes_a_state_is_tried() -> None:
    """The list of tested commands includes every verb that takes a state directory."""

    def find(command: click.Command, words: tuple[str, ...]) -> Iterator[str]:
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                found = command.get_command(click.Context(command), name)
                assert found is not None
                yield from find(found, (*words, name))
        elif any(one.opts[0].endswith("-state") for one in command.params):
            yield " ".join(words)

    tried = (*READING, *WRITING, *BETWEEN)
    for verb in set(find(cli, ())) - STATELESS:
        assert any(f"{line} ".startswith(f"{verb} ") for line in tried), verb


def test_a_state_that_knows_a_part_is_taken(tmp_path: Path) -> None:
    grown = GrowingTier(tmp_path)
    grown.append("orders", 0, 3)
    ran = tieredstore("ls", "--tier", grown.url, "--state", grown.root / "state")
    assert (ran.code, ran.err) == (0, "")
