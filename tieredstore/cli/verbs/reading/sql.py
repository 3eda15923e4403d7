"""`tieredstore sql`: a query over the topics of a tier."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing

import click

from tieredstore.cli.logs.saying import say
from tieredstore.cli.options.output import body_option, rows_output_options
from tieredstore.cli.options.tier import TierOptions, tier_options

TABLES = ".tables"
_TABLE_COLUMNS = ("table", "queues", "bytes")


@click.command("sql")
@click.argument("query")
@tier_options(has_defaults=True)
@body_option
@rows_output_options
def command(query: str, tier: TierOptions, body: str, output: str, wide: bool) -> None:
    """Run a SELECT over the topics of a tier, of which each is a table. `-` is standard input.

    `.tables` lists them, and `describe orders` the columns of one. Only what the query needs is
    read: its columns, and of the messages what it says of queue, queue offset, store time and keys.
    """
    from tieredstore.cli.composition import locate_tier
    from tieredstore.cli.output.forms import Form, make_output, write_form
    from tieredstore.cli.sql.session import SqlSession
    from tieredstore.cli.sql.values import plain_value
    from tieredstore.scan.rows import BodyForm
    from tieredstore.table import Tier

    form, shown = Form(output), BodyForm(body)
    is_json = form in (Form.JSON, Form.NDJSON)
    text = (sys.stdin.read() if query == "-" else query).strip()
    out = make_output(form, is_wide=wide)
    with closing(SqlSession(Tier(locate_tier(tier)))) as session:
        if text.rstrip(";") == TABLES:
            write_form(out, form, _TABLE_COLUMNS, session.list_tables())
            return
        columns, rows = session.run(text)

        def make_rows() -> Iterator[dict[str, object]]:
            for values in rows:
                cells = (plain_value(value, shown, is_json=is_json) for value in values)
                yield dict(zip(columns, cells, strict=True))

        if not write_form(out, form, columns, make_rows(), keeps_all=True):
            say("no row")
