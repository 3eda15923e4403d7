"""Every verb that takes a store or its tier works on a store with its consume queues in RocksDB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tests.kit.command_line import tieredstore
from tests.kit.local_stores import copy_store
from tieredstore.cli.main import cli

OF_BROKERS = frozenset(
    {
        ("broker",), ("dev",), ("send",), ("tail",), ("config", "backup"), ("config", "restore"),
        ("topic", "create"), ("topic", "delete"), ("topic", "list"), ("completion",), ("man",),
        ("profile", "delete"), ("profile", "list"), ("profile", "set"), ("profile", "show"),
        ("restore",),
    }
)  # fmt: skip
"""Verbs that are not tested: those that take neither a store nor a tier, and the one that needs
backups of a broker's files."""


def _walk(command: click.Command, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the full names of all verbs as a user types them. Groups of verbs are omitted."""
    if not isinstance(command, click.Group):
        yield names
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _walk(found, (*names, name))


def _offsets(folder: Path, offset: int) -> Path:
    path = folder / f"offsets-{offset}.json"
    path.write_text(json.dumps({"offsetTable": {"pub_normal@readers": {"0": offset}}}))
    return path


def test_every_verb_takes_a_rocksdb_store_or_its_tier(public_rocksdb: Path, tmp_path: Path) -> None:
    manifest: dict[str, Any] = json.loads((public_rocksdb / "manifest.json").read_bytes())
    messages = [row for row in manifest["messages"] if row["topic"].startswith("pub_")]
    count = len(messages)
    manifest_count = 2171  # system topics and light queues included
    keyed = next(row for row in messages if row["keys"])
    store = copy_store(public_rocksdb / "store", tmp_path / "store")
    conf = ["--config", public_rocksdb / "broker.conf"]
    tier = ["--tier", f"file://{tmp_path / 'tier'}"]
    state = ["--state", tmp_path / "state"]
    job = ["--work", tmp_path / "work", "--workers", "1", "--quiet"]
    table = tmp_path / "table"
    # In this order: later ones need what earlier ones made. With what its answer has to hold.
    runs: list[tuple[tuple[str, ...], list[object], dict[str, object]]] = [
        (("config", "check"), conf[1:], {}),
        (("config", "show"), conf, {}),
        (("store", "stat"), [store], {"messages": manifest_count}),
        (("store", "check"), [store, *conf], {"recovery_needed": False}),
        (("offload",), [store, *tier, *state, *conf], {"messages": count}),
        (("ls",), [*tier, *state], {}),
        (("stat",), [*tier, *state], {}),
        (("cat",), [*tier, *state, "--topic", keyed["topic"]], {}),
        (("sql",), [".tables", *tier, *state], {}),
        (("sample",), [tmp_path / "sample"], {}),
        (("query",), [*tier, *state, "--msg-id", keyed["uniqKey"]], {}),
        (("verify",), [*tier, *state, *job], {"messages": count, "findings": []}),
        (("report",), [*tier, *state, "--to", tmp_path / "report", *job], {}),
        (("export",), [*tier, *state, "--format", "parquet", "--to", table, *job], {}),
        (("compact", "export"), [table, *job], {"rows": 0}),  # one file a partition
        (
            ("backfill",),
            ["--from", table, "--tier", f"file://{tmp_path / 'again'}", "--state",
             tmp_path / "again-state", *conf, *job],
            {"messages": count},
        ),
        (("rebuild", "index"), [*tier, *state, "--force", *conf, *job], {}),
        (("compact", "index"), [*tier, *state, *conf, *job], {}),
        (("rebuild", "metadata"), [*tier, "--state", tmp_path / "made", *job], {}),
        (("jobs", "list"), [*job[:2]], {}),
        (("jobs", "forget"), ["--all", *job[:2]], {}),
        (
            ("advise",),
            [store, *tier, *state, *conf, "--offsets", f"{_offsets(tmp_path, 0)}@1700000000000",
             "--offsets", f"{_offsets(tmp_path, 1)}@1700003600000"],
            {"readings": 1, "is_priced": False},
        ),
        (("health",), [*tier, *state, "--list"], {}),
        (("tier", "expire"), ["--all-topics", "--before", "2001-01-01", *tier, *state, *conf], {}),
        (("tier", "reset"), [keyed["topic"], *tier, *state, *conf], {}),
        (
            ("tier", "skip"),
            [keyed["topic"], "--queue", "0", "--to", "9000", *tier, *state, *conf],
            {},
        ),
        (("tier", "delete"), [keyed["topic"], *tier, *state, *conf], {}),
        (("tier", "adopt"), [*tier, "--state", tmp_path / "made", *conf], {}),
        (("copy",), ["--from", f"file://{tmp_path / 'tier'}", "--to",
                     f"file://{tmp_path / 'copy'}", "--to-state", tmp_path / "copied"], {}),
        (("doctor",), ["--tier", f"file://{tmp_path / 'copy'}", "--no-throughput"], {}),
        (("store", "recover"), [store, *conf, "--rebuild", "--yes"], {}),
    ]  # fmt: skip
    assert sorted(names for names, _, _ in runs) == sorted(set(_walk(cli)) - OF_BROKERS)
    for names, arguments, expected in runs:
        ran = tieredstore(*names, *arguments, "--output", "json")
        assert ran.code == 0, (names, ran.out, ran.err)
        record = ran.record
        for name, value in expected.items():
            assert record[name] == value, (names, record)
        if names == ("query",):
            assert keyed["uniqKey"] in ran.out
