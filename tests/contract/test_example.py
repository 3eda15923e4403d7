"""The example provider passes the contract tests, is as short as its documentation says, and can
serve a broker."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from tests.kit.configured_broker import MakeBroker, brokers
from tieredstore.contracts.segment import UnknownWrite

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sqlite_provider.py"
TEST = ROOT / "examples" / "test_sqlite_provider.py"
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef)


def count_lines_of_code(path: Path) -> int:
    """Count the lines that are neither empty, nor a comment, nor part of a docstring."""
    source = path.read_text()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node) is not None:
            text = node.body[0]
            lines.difference_update(range(text.lineno, (text.end_lineno or 0) + 1))
    return len(lines)


def test_the_example_is_short_and_the_page_says_how_short() -> None:
    code, test = count_lines_of_code(EXAMPLE), count_lines_of_code(TEST)
    assert code <= 100
    assert len(TEST.read_text().splitlines()) <= 20
    page = " ".join((ROOT / "docs" / "providers.md").read_text().split())
    assert f"in {code} lines of code" in page
    assert f"proves it in {test}." in page


def test_the_page_shows_the_test_as_it_is() -> None:
    text = TEST.read_text()
    assert (
        text[text.index("class TestSqliteProvider") :]
        in (ROOT / "docs" / "providers.md").read_text()
    )


def test_the_example_s_own_tests_pass() -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TEST)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(ran.stdout.rpartition(" passed")[0].split()[-1]) >= 60


def test_a_broker_uploads_to_the_example_and_reads_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    make: MakeBroker
    with brokers(tmp_path) as make:
        broker = make(
            tieredBackendServiceProvider="sqlite_provider.SqliteProvider",
            tieredStoreFilePath=tmp_path / "tier.sqlite",
        )
        broker.put(20)
        assert broker.upload() == 20
        found = broker.store.fetcher.get_message("g", "TopicA", 0, 0, 32)
        assert [message.queue_offset for message in found.messages] == list(range(20))


def test_a_backend_that_fails_in_a_commit_leaves_the_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    import sqlite_provider

    from tieredstore.testing.provider.samples import segment_id

    provider = sqlite_provider.SqliteProvider(str(tmp_path / "tier.sqlite"))
    segment = provider.open(segment_id())
    provider.query("DROP TABLE piece")
    assert isinstance(segment.write(0, [b"abc"]), UnknownWrite)
