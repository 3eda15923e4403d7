"""Rows can be printed as tables, JSON and NDJSON."""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Iterator

import pytest

from tieredstore.cli.exits import describe_error
from tieredstore.cli.output.rows import Output, OutputClosed, OutputFormat
from tieredstore.errors import Corrupt

ROWS = [
    {"name": "a", "count": 1, "store_timestamp": 1_795_266_316_182, "more": [1, 2]},
    {"name": "long name", "count": 1000, "store_timestamp": None, "more": {"k": "v"}},
]


def printed(format: OutputFormat, rows: list[dict[str, object]]) -> str:
    stream = io.BytesIO()
    assert Output(format, stream).rows(("name", "count", "store_timestamp"), rows) == len(rows)
    return stream.getvalue().decode()


def test_a_table_aligns_numbers_right_and_shows_times_in_iso() -> None:
    assert printed(OutputFormat.TABLE, ROWS).splitlines() == [
        "name       count  store_timestamp",
        "a              1  2026-11-21T13:05:16.182Z",
        "long name   1000",
    ]
    assert printed(OutputFormat.TABLE, []) == ""


def test_json_is_one_array_and_ndjson_a_line_each_with_all_fields() -> None:
    assert json.loads(printed(OutputFormat.JSON, ROWS)) == ROWS
    assert json.loads(printed(OutputFormat.JSON, [])) == []
    lines = printed(OutputFormat.NDJSON, ROWS).splitlines()
    assert [json.loads(line) for line in lines] == ROWS


def test_control_characters_never_reach_the_terminal() -> None:
    row: dict[str, object] = {"name": "\x1b[31mred\n\x00", "count": "x" * 500}
    text = printed(OutputFormat.TABLE, [row])
    assert "\x1b" not in text
    assert "\\x1b[31mred\\n\\x00" in text
    assert len(text.splitlines()) == 2
    assert "x" * 99 + "…" in text


def test_text_that_is_no_unicode_is_escaped() -> None:
    row: dict[str, object] = {"name": "bad \udcff name", "count": 1}
    assert json.loads(printed(OutputFormat.NDJSON, [row])) == row
    assert "\\udcff" in printed(OutputFormat.TABLE, [row])


def test_an_array_is_closed_when_its_rows_fail() -> None:
    def rows() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise Corrupt("damaged")

    stream = io.BytesIO()
    with pytest.raises(Corrupt):
        Output(OutputFormat.JSON, stream).rows(("n",), rows())
    assert json.loads(stream.getvalue()) == [{"n": 1}]


def test_a_reader_that_went_away_is_its_own_exception() -> None:
    class Closed(io.BytesIO):
        def write(self, data: object) -> int:
            raise BrokenPipeError

    with pytest.raises(OutputClosed):
        Output(OutputFormat.NDJSON, Closed()).rows(("name",), ROWS)


def test_an_output_that_is_full_is_named() -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        Output(OutputFormat.NDJSON, Full()).rows(("name",), ROWS)
    assert describe_error(caught.value) == "output: No space left on device"


def test_a_record_is_lines_and_its_lists_are_tables() -> None:
    stream = io.BytesIO()
    record: dict[str, object] = {"total": 2, "is_done": True, "rows": ROWS}
    Output(OutputFormat.TABLE, stream).record(record, {"rows": ("name",)})
    assert stream.getvalue().decode().splitlines() == [
        "total    2",
        "is_done  yes",
        "",
        "name",
        "a",
        "long name",
    ]


MANY = [{"name": f"q-{number}"} for number in range(1_000)]


def table_of(rows: int, **options: bool) -> list[str]:
    stream = io.BytesIO()
    out = Output(OutputFormat.TABLE, stream, **options)
    out.record({"rows": MANY[:rows]}, {"rows": ("name",)})
    return stream.getvalue().decode().split()


def test_a_table_of_very_many_rows_ends_behind_the_first_and_says_how_many_more_there_are() -> None:
    assert table_of(1_000)[:52] == ["name", *(row["name"] for row in MANY[:50]), "…"]
    assert "…" not in table_of(50)
    assert " ".join(table_of(1_000)[51:]) == "… 950 more: --all-rows shows them"


def test_a_table_has_all_rows_when_asked_to() -> None:
    assert table_of(1_000, has_all_rows=True) == ["name", *(row["name"] for row in MANY)]


@pytest.mark.parametrize("format", [OutputFormat.JSON, OutputFormat.NDJSON])
def test_json_has_all_rows(format: OutputFormat) -> None:
    stream = io.BytesIO()
    assert Output(format, stream).rows(("name",), iter(MANY), total=1_000) == 1_000


def test_rows_that_a_table_does_not_show_are_not_made() -> None:
    made = 0

    def rows() -> Iterator[dict[str, str]]:
        nonlocal made
        for row in MANY:
            made += 1
            yield row

    Output(OutputFormat.TABLE, io.BytesIO()).rows(("name",), rows(), total=1_000)
    assert made == 50
