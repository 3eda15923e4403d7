"""Text written by other users cannot control the terminal. An option also makes it safe to open in
a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

import pytest

from tieredstore.cli.harmless import defuse_formula, make_harmless, make_harmless_bytes
from tieredstore.cli.logs.choice import make_line
from tieredstore.cli.output.forms import Form
from tieredstore.cli.output.messages import MessageOutput
from tieredstore.cli.output.rows import Output, OutputFormat
from tieredstore.scan.rows import COLUMNS

HOSTILE = (
    "\x1b]0;owned\x07\x1b[31mRED\x1b[2J\u202eRTL\u2066\u200f\u061c\u0085\u009b31m\r\x00\x7f\x08"
)
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
ROW: dict[str, object] = {
    **dict.fromkeys(COLUMNS),
    "topic": "orders",
    "queue_id": -3,
    "queue_offset": 41,
    "keys": [HOSTILE, "=1+1"],
    "tags": "@SUM(1)",
    "body": HOSTILE + "é\ta\nb",
    "properties": {HOSTILE: HOSTILE},
}
TABLE = ("queue_id", "queue_offset", "keys", "body")
WAYS: list[dict[str, str]] = [
    *({"output": form.value} for form in Form),
    {"template": "{keys} {body} {properties}"},
]


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def printed(stream: io.BytesIO, *, defuses: bool = False, **options: Any) -> str:
    out = MessageOutput(**options, stream=stream, defuses=defuses)
    fields = set(out.fields(TABLE))
    out.write(TABLE, [{name: value for name, value in ROW.items() if name in fields}])
    return stream.getvalue().decode()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_s34_no_form_brings_control_characters_to_a_terminal(way: dict[str, str]) -> None:
    options: dict[str, Any] = dict(way)
    shown = re.sub("\x1b\\[[01]m", "", printed(Terminal(), **options))  # the head of a table
    assert not HARMFUL.findall(shown)
    assert "owned" in shown


@pytest.mark.parametrize("form", ["csv", "tsv", "raw"])
def test_what_goes_into_a_pipe_stays_as_it_is(form: str) -> None:
    body = str(ROW["body"])
    expected = {"raw": body, "csv": body, "tsv": "\x1b]0;owned\x07\x1b[31mRED\x1b[2J\u202e"}
    assert expected[form] in printed(io.BytesIO(), output=form)


def test_json_on_a_terminal_is_the_same_json() -> None:
    for form in ("json", "ndjson"):
        shown = printed(Terminal(), output=form)
        assert json.loads(shown) == json.loads(printed(io.BytesIO(), output=form))
    tag = "\U000e0041"
    assert json.loads(make_harmless(json.dumps(tag, ensure_ascii=False))) == tag


def test_bytes_that_are_no_text_and_own_colours() -> None:
    assert make_harmless_bytes(b"\xff\x9b31m\x1b[0m") == b"\\xff\\x9b31m\\u001b[0m"
    assert make_harmless_bytes(b"\x1b[1mA\x1b[2J\x1b[0m\n", keeps_styles=True) == (
        b"\x1b[1mA\\u001b[2J\x1b[0m\n"
    )


def test_s34_records_lines_and_what_is_said_beside_them() -> None:
    for kind in OutputFormat:
        stream = Terminal()
        out = Output(kind, stream)
        out.record({"name": HOSTILE, "rows": [{"name": HOSTILE}]}, {"rows": ("name",)})
        out.line(HOSTILE)
        shown = re.sub("\x1b\\[(0|1|31|32|33)m", "", stream.getvalue().decode())
        assert not HARMFUL.findall(shown)
    assert not HARMFUL.findall(make_line(HOSTILE, "error"))


def test_s35_a_spreadsheet_takes_no_text_for_a_formula_where_that_is_asked_for() -> None:
    for form, delimiter in (("csv", ","), ("tsv", "\t")):
        plain = printed(io.BytesIO(), output=form, columns="tags,queue_id")
        assert plain.splitlines()[1] == f"@SUM(1){delimiter}-3"
        safe = printed(io.BytesIO(), defuses=True, output=form, columns="tags,queue_id,topic")
        assert safe.splitlines()[1] == delimiter.join(("'@SUM(1)", "-3", "orders"))
    for text in ("=1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", "＝1", "＋1", "－1", "＠a"):
        assert defuse_formula(text) == "'" + text
    for text in ("", "a=1", "1+1", "'=1", " =1"):
        assert defuse_formula(text) == text
    (row,) = csv.DictReader(io.StringIO(printed(io.BytesIO(), defuses=True, output="csv")))
    assert row["topic"] == "orders"
