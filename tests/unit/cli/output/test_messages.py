"""Tests of how messages are printed."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tieredstore.cli.output.forms import Form
from tieredstore.cli.output.messages import MessageOutput
from tieredstore.errors import Invalid
from tieredstore.scan.rows import COLUMNS, BodyForm

ROW: dict[str, object] = {
    **dict.fromkeys(COLUMNS),
    "topic": "orders",
    "queue_id": 3,
    "queue_offset": 41,
    "keys": ["a", "b"],
    "store_timestamp": 1_795_266_316_182,
    "body": 'one "tea",\ttwo\n\x1b[31mcoffees\\',
    "properties": {"region": "eu"},
}
ROWS = [ROW, {**ROW, "queue_offset": 42, "body": None, "keys": [], "properties": {}}]
TABLE = ("queue_id", "queue_offset", "body")


def printed(**options: str) -> str:
    stream = io.BytesIO()
    out = MessageOutput(**options, stream=stream)  # type: ignore[arg-type]
    fields = set(out.fields(TABLE))
    rows = [{name: value for name, value in row.items() if name in fields} for row in ROWS]
    assert out.write(TABLE, rows) == len(ROWS)
    return stream.getvalue().decode()


def test_csv_reads_back_with_each_line_break_alone() -> None:
    for body in ("a\nb", "a\rb", "\r\n", "plain"):
        stream = io.BytesIO()
        out = MessageOutput("csv", "body", stream=stream)
        out.write(TABLE, [{"body": body}] * 2)
        text = stream.getvalue().decode()
        assert [row["body"] for row in csv.DictReader(io.StringIO(text, newline=""))] == [body] * 2


def test_csv_has_all_fields_and_reads_back() -> None:
    first, second = csv.DictReader(io.StringIO(printed(output="csv"), newline=""))
    assert tuple(first) == COLUMNS
    assert first["body"] == ROW["body"]
    assert (first["store_timestamp"], first["keys"]) == ("1795266316182", "a b")
    assert json.loads(first["properties"]) == {"region": "eu"}
    assert (second["body"], second["tags"]) == ("", "")


def test_tsv_is_a_line_a_message() -> None:
    head, first, second = printed(output="tsv", columns="queue_offset,body,keys").splitlines()
    assert head == "queue_offset\tbody\tkeys"
    assert first == '41\tone "tea",\\ttwo\\n\x1b[31mcoffees\\\\\ta b'
    assert second == "42\t\t"


def test_vertical_is_a_line_a_field_and_lets_no_control_character_through() -> None:
    lines = printed(output="vertical", columns="store_timestamp,body").splitlines()
    assert lines[0].startswith("-[ 1 ]--")
    assert lines[1:4] == [
        "store_timestamp  2026-11-21T13:05:16.182Z",
        'body             one "tea",\\ttwo',
        "                 \\x1b[31mcoffees\\",
    ]
    assert lines[4].startswith("-[ 2 ]--")
    assert lines[6] == "body"


def test_raw_is_bodies_alone_byte_by_byte() -> None:
    stream = io.BytesIO()
    out = MessageOutput("raw", stream=stream)
    assert (out.body, out.fields(TABLE)) == (BodyForm.BYTES, ("body",))
    out.write(TABLE, [{"body": b"\xff\x00\x80"}, {"body": b""}])
    assert stream.getvalue() == b"\xff\x00\x80\n\n"
    hashes = MessageOutput("raw", body="sha256", stream=stream)
    assert hashes.body is BodyForm.SHA256


def test_columns_are_those_of_every_form() -> None:
    columns = "body,properties.region,queue_id"
    assert json.loads(printed(output="ndjson", columns=columns).splitlines()[0]) == {
        "body": ROW["body"],
        "properties.region": "eu",
        "queue_id": 3,
    }
    table = printed(output="table", columns="queue_offset,properties.region").splitlines()
    assert [line.split() for line in table] == [
        ["queue_offset", "properties.region"],
        ["41", "eu"],
        ["42"],
    ]
    assert printed(output="csv", columns="properties.region").splitlines() == [
        "properties.region",
        "eu",
        '""',
    ]


def test_a_template_is_a_line_a_message() -> None:
    text = r"{queue_id}@{queue_offset:>4}\t{store_timestamp} {store_timestamp:d} {{{keys}}} \\n"
    assert printed(template=text).splitlines() == [
        "3@  41\t2026-11-21T13:05:16.182Z 1795266316182 {a b} \\n",
        "3@  42\t2026-11-21T13:05:16.182Z 1795266316182 {} \\n",
    ]
    assert printed(template="{properties.region}|{properties}").splitlines() == [
        'eu|{"region":"eu"}',
        "|{}",
    ]
    assert printed(template="x") == "x\nx\n"


def test_only_what_is_asked_for_is_made() -> None:
    assert MessageOutput().fields(TABLE) == TABLE
    assert MessageOutput("ndjson").fields(TABLE) == COLUMNS
    assert MessageOutput(template="{body} {properties.a} {body}").fields(TABLE) == (
        "body",
        "properties",
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"columns": "bdy"}, "no field 'bdy' in a message; did you mean 'body'"),
        ({"columns": "body,body"}, "expected fields, each once"),
        ({"columns": ","}, "expected fields"),
        ({"columns": "properties."}, "no field 'properties.'"),
        ({"template": "{bdy}"}, "did you mean 'body'"),
        ({"template": "{}"}, "no field ''"),
        ({"template": "{body!r}"}, "expected a field, with a format"),
        ({"template": "{body"}, "--format '{body': "),
        ({"template": "{queue_id:{body}}"}, "expected a field, with a format"),
        ({"template": "{body:d}"}, "--format {body:d}: "),
        ({"template": "x", "output": "csv"}, "--format excludes --output"),
        ({"template": "x", "columns": "body"}, "--format excludes --output"),
        ({"output": "raw", "columns": "body"}, "prints bodies alone"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(Invalid) as error:
        printed(**options)
    assert problem in str(error.value)


def test_the_command_takes_every_form() -> None:
    """The command accepts every output format. The list of formats is duplicated so that the
    command starts without importing an output module."""
    from tieredstore.cli.verbs.cat import cat

    option = next(one for one in cat.params if one.name == "out__output")
    assert tuple(option.type.choices) == tuple(Form)  # type: ignore[attr-defined]
