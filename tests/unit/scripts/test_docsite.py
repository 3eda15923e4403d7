"""The pages that `scripts/docs` generates agree with the code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from scripts.docsite import commands, errors, metrics, python_api, staging
from tests.kit.paths import ROOT
from tieredstore.broker.operations.metric_table import METRICS
from tieredstore.cli.exits import ExitCode
from tieredstore.cli.help.manual import walk_commands
from tieredstore.cli.main import cli

COMMANDS = commands.page()
METRIC = re.compile(r"rocketmq_[a-z0-9_]+\Z")
NO_METRICS = {"rocketmq_tiered"}
"""Names that look like metrics, but are none."""


def test_every_command_and_option_is_on_its_page() -> None:
    root = click.Context(cli, info_name="tieredstore", **cli.context_settings)
    found = list(walk_commands(root))
    assert len(found) > 50
    for context in found:
        name = context.command_path.partition(" ")[2]
        section = re.search(rf"^##+ {name}\n(.*?)(?=^##|\Z)", COMMANDS, re.DOTALL | re.MULTILINE)
        assert section is not None, name
        for option in context.command.params:
            if (
                isinstance(option, click.Option)
                and not option.hidden
                and "--help" not in option.opts
            ):
                assert f"{option.opts[-1]}" in section.group() + COMMANDS.partition("## ")[2], name


def test_every_exit_code_is_on_both_pages() -> None:
    for page in (COMMANDS, errors.page()):
        for code in ExitCode:
            assert re.search(rf"^\| {int(code)} \| \S", page, re.MULTILINE)


def test_every_error_has_a_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `\w+` \| \d+ \| \S", errors.page(), re.MULTILINE)
    assert rows == [kind.__name__ for kind in errors.error_classes()]
    assert {"Corrupt", "Fenced", "Invalid", "Unavailable"} <= set(rows)


def metrics_of_the_code() -> Iterator[str]:
    for folder in ("tieredstore", "providers", "metadata"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name == "metric_table.py":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                text = node.value if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and METRIC.match(text) and not text.endswith("_"):
                    yield text


def test_the_table_of_metrics_has_those_of_the_code() -> None:
    assert set(metrics_of_the_code()) - NO_METRICS == set(METRICS)
    assert list(METRICS) == sorted(METRICS)
    page = metrics.page()
    for name, info in METRICS.items():
        assert f"| `{name}` | {info.kind} |" in page
        assert info.kind == "counter" or not name.endswith("_total")
        assert info.meaning.endswith(".")


def test_the_python_page_has_every_public_name() -> None:
    page = python_api.page()
    for name in python_api.public_names():
        assert f"### `tieredstore.{name}`\n" in page
    from tieredstore import jobs

    for name in jobs.__all__:
        assert f"### `tieredstore.jobs.{name}`\n" in page
    assert "#### `Tier.scan`\n" in page
    assert "#### `Broker.advance`\n" in page


def test_every_page_is_in_the_navigation() -> None:
    config = tomllib.loads((ROOT / "scripts" / "docsite" / "zensical.toml").read_text())

    def leaves(node: Any) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        elif isinstance(node, list):
            for one in node:
                yield from leaves(one)
        else:
            for one in node.values():
                yield from leaves(one)

    listed = list(leaves(config["project"]["nav"]))
    assert len(listed) == len(set(listed))
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    pages = {page for page in pages if not page.startswith("adr/")}  # a list of their own
    pages |= {*staging.MOVED.values(), *staging.GENERATED, "adr/index.md", "formats/index.md"}
    assert set(listed) == pages


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](docs/cli.md#x)", "[a](cli.md#x)"),
        ("[a](docs/formats/)", "[a](formats/index.md)"),
        ("[a](deploy/README.md)", "[a](deploy.md)"),
        ("[a](#here) [b](https://host/x)", "[a](#here) [b](https://host/x)"),
        ("[`examples/x.py`](examples/history.ipynb)", "`examples/x.py`"),
        ("[a](examples/history.ipynb)", "a (`examples/history.ipynb`)"),
        ("![a](docs/cost.svg)", "![a](cost.svg)"),
        ("```\n[a](docs/cli.md)\n```", "```\n[a](docs/cli.md)\n```"),
    ],
)
def test_links_lead_to_pages_of_the_site(text: str, expected: str) -> None:
    docs = ROOT / "docs"
    places = {path: str(path.relative_to(docs)) for path in docs.rglob("*") if path.is_file()}
    places |= {ROOT / name: place for name, place in staging.MOVED.items()}
    assert staging.rewrite_links(text, ROOT / "README.md", places) == expected


def test_staging_writes_the_pages_and_pictures(tmp_path: Path) -> None:
    staging.stage(tmp_path)
    for name in ("index.md", "reference/commands.md", "adr/index.md", "cost.svg", "deploy.md"):
        assert (tmp_path / name).stat().st_size > 100
