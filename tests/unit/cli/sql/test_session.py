"""A session executes statements one after another."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import tieredstore
from tests.kit.tier_builder import TierBuilder, message
from tieredstore.cli.sql.session import SqlSession
from tieredstore.errors import Invalid

pytest.importorskip("duckdb")


def test_statements_of_one_session_do_not_meet(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path)
    builder.queue("orders", 0, [message("orders", 0, number) for number in range(3)])
    with closing(SqlSession(tieredstore.open(builder.built.url))) as session:
        assert list(session.run("select count(*) from orders")[1]) == [(3,)]
        with pytest.raises(Invalid):
            session.run("select nothing from orders")
        assert list(session.run("select max(queue_offset) from orders")[1]) == [(2,)]


@pytest.mark.parametrize("end", ["", ";", "/*\u6807*/;", " limit 9"])
def test_a_statement_may_have_any_text(tmp_path: Path, end: str) -> None:
    builder = TierBuilder(tmp_path)
    builder.queue("orders", 0, [message("orders", 0, 0)])
    with closing(SqlSession(tieredstore.open(builder.built.url))) as session:
        names, rows = session.run(f"select '\u6807\u7b7e' as \u00e9{end}")
        assert (names, list(rows)) == (["\u00e9"], [("\u6807\u7b7e",)])
        with pytest.raises(Invalid, match="UTF-8"):
            session.run("select '\udcff'")
