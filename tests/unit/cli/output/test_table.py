"""Tables fit the width of the terminal."""

from __future__ import annotations

import pytest

from tieredstore.cli.output.cells import Screen, measure, shorten
from tieredstore.cli.output.table import Table, field_lines
from tieredstore.scan.human import human_size, human_time

MESSAGES: list[dict[str, object]] = [
    {
        "queue_offset": 7,
        "store_timestamp": 1_795_266_316_182,
        "msg_id": f"{'0' * 28}{number:04}",
        "body": f"body {number} " * 20,
    }
    for number in range(3)
]
NAMES = ("queue_offset", "store_timestamp", "msg_id", "body")


def lay_out(width: int, *, keeps_all: bool = False) -> tuple[list[str], list[str]]:
    table = Table(NAMES, Screen(width), keeps_all=keeps_all)
    return list(table.lines(MESSAGES, sample_rows=10)), table.left_out


def test_the_body_takes_what_the_others_leave() -> None:
    lines, left_out = lay_out(120)
    assert not left_out
    assert {len(line) for line in lines[2:]} == {120}
    assert f"{'0' * 28}0000" in lines[2]
    assert lines[2].endswith("…")


def test_ids_are_shortened_in_the_middle_before_a_column_goes() -> None:
    lines, left_out = lay_out(70)
    assert not left_out
    assert len(lines[-1]) == 70
    assert "…000000002  body 2" in lines[-1]
    assert "2026-11-21 13:05:16" in lines[-1]  # numbers and times are whole
    lines, left_out = lay_out(50)
    assert left_out == ["msg_id"]
    assert max(map(len, lines)) <= 50


def test_a_column_that_was_asked_for_stays() -> None:
    lines, left_out = lay_out(45, keeps_all=True)
    assert not left_out
    assert "…" in lines[-1]
    assert len(lines[-1]) > 45


def test_a_list_of_queues_fits_eighty_cells_whatever_its_numbers() -> None:
    """A table of queues fits into 80 columns, even with large numbers. Names are shortened, and the
    time of the last message is omitted."""
    row: dict[str, object] = {
        "broker": "labBroker",
        "topic": "pub_normal",
        "queue_id": 0,
        "min_offset": 0,
        "max_offset": 700,
        "messages": 700,
        "segments": 6,
        "bytes": 2_658_193,
        "min_store_timestamp": 1_795_266_316_182,
        "max_store_timestamp": 1_795_266_316_182,
    }
    few = Table(tuple(row), Screen(80))
    assert max(map(measure, few.lines([row], sample_rows=1))) <= 80
    assert few.left_out == ["segments", "min_store_timestamp"]
    large = row | dict.fromkeys(("min_offset", "max_offset", "messages"), 10**11)
    many = Table(tuple(row), Screen(80))
    assert max(map(measure, many.lines([large], sample_rows=1))) <= 80
    assert many.left_out == ["segments", "min_store_timestamp", "max_store_timestamp"]


def test_a_list_of_segments_fits_eighty_cells() -> None:
    row: dict[str, object] = {
        "path": "labBroker/pub_big/0",
        "type": "CONSUME_QUEUE",
        "base_offset": 1_216_893,
        "bytes": 168_000,
        "begin_timestamp": 1_795_266_316_182,
        "end_timestamp": 1_795_266_316_182,
    }
    table = Table(tuple(row), Screen(80))
    assert max(map(measure, table.lines([row], sample_rows=1))) <= 80
    assert table.left_out == ["begin_timestamp"]


def test_messages_of_several_topics_fit_eighty_cells() -> None:
    row: dict[str, object] = {
        "topic": "pub_expire",
        "queue_id": 0,
        "queue_offset": 403,
        "store_timestamp": 1_795_266_316_182,
        "tags": "标签D",
        "keys": ["pube-K403", "pube-grp3", "shared"],
        "msg_id": "F" * 32,
        "body": "cluster group " * 9,
    }
    assert max(map(measure, Table(tuple(row), Screen(80)).lines([row], sample_rows=1))) <= 80


def test_a_head_of_two_lines_stands_over_its_column() -> None:
    table = Table(("queue_id", "topic"), Screen(12))
    rows: list[dict[str, object]] = [{"queue_id": 12, "topic": "orders"}]
    assert list(table.lines(rows, sample_rows=1)) == [
        "queue",
        "   id  topic",
        "   12  orders",
    ]
    assert table.head_lines == 2


def test_characters_of_two_cells_count_twice() -> None:
    rows: list[dict[str, object]] = [
        {"tags": "订单", "body": "x" * 90},
        {"tags": "ab", "body": "y"},
    ]
    lines = list(Table(("tags", "body"), Screen(40)).lines(rows, sample_rows=2))
    assert [measure(line) for line in lines] == [10, 40, 7]
    assert shorten("订单订单", 5, in_the_middle=False) == "订单…"
    assert measure(shorten("订单订单订单", 8, in_the_middle=True)) <= 8


def test_without_rows_there_is_no_head() -> None:
    assert list(Table(NAMES, Screen(80)).lines([], sample_rows=10)) == []


def test_rows_that_come_one_by_one_have_the_usual_widths() -> None:
    rows = iter(MESSAGES)
    lines = Table(NAMES, None).lines(rows, sample_rows=0)
    head, first = next(lines), next(lines)
    assert next(rows) is MESSAGES[1]  # no row was waited for
    assert head.index("body") == first.index("body 0")


def test_words_that_mean_good_or_bad_have_a_colour() -> None:
    rows: list[dict[str, object]] = [
        {"probe": "ok", "verdict": "ok"},
        {"probe": "b", "verdict": "unsafe"},
    ]
    head, good, bad = Table(("probe", "verdict"), Screen(80, True)).lines(rows, sample_rows=2)
    assert head == "\x1b[1mprobe  verdict\x1b[0m"
    assert good == "ok     \x1b[32mok     \x1b[0m"
    assert "\x1b[31munsafe" in bad


def test_a_long_field_goes_on_below_itself_and_a_null_one_has_no_line() -> None:
    fields: dict[str, object] = {
        "bytes": 12_345,
        "none": None,
        "age_seconds": 7300.5,
        "tier": "x" * 60,
    }
    assert list(field_lines(fields, Screen(50))) == [
        "bytes        12,345 (12 kB)",
        "age_seconds  7300.500 (2h)",
        f"tier         {'x' * 37}",
        f"             {'x' * 23}",
    ]
    assert list(field_lines(fields, None))[1] == "none         "


def test_a_long_field_is_broken_at_blanks_and_counts_cells() -> None:
    fields: dict[str, object] = {
        "skipped": {"%LMQ%all": "light message queue", "%LMQ%dev0": "light message queue"},
        "behind": {"seconds": 0.0, "checkpoint": None},
        "name": "订单" * 12,
    }
    assert list(field_lines(fields, Screen(40))) == [
        "skipped  %LMQ%all=light message queue,",
        "         %LMQ%dev0=light message queue",
        "behind   seconds=0.000, checkpoint=",
        f"name     {'订单' * 7}订",
        f"         单{'订单' * 4}",
    ]


@pytest.mark.parametrize(
    "name",
    ["served_until", "held_back_since", "commit_log_flushed_until", "statistics_written",
     "newest_timestamp", "from_ms", "until_ms"],
)  # fmt: skip
def test_a_field_that_is_a_time_is_shown_as_one(name: str) -> None:
    for screen in (Screen(80), None):
        [line] = field_lines({name: 1_795_266_316_182}, screen)
        assert line == f"{name}  2026-11-21T13:05:16.182Z"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (9_949, "9.9 kB"), (9_950, "10 kB"),
        (999_499, "999 kB"), (999_500, "1.0 MB"), (268_435_456, "268 MB"), (-2_800, "-2.8 kB"),
        (2**70, "1181 EB"),
    ],
)  # fmt: skip
def test_sizes_have_two_digits_at_least(size_bytes: int, text: str) -> None:
    assert human_size(size_bytes) == text


def test_times_end_at_the_second_and_what_is_none_is_a_number() -> None:
    assert human_time(1_795_266_316_999) == "2026-11-21 13:05:16"
    assert human_time(-5) == "-5"
