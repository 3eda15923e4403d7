"""`scripts/prose.py` counts marks in docstrings, comments, messages and pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import prose


def measure(tmp_path: Path, name: str, text: str) -> prose.Report:
    path = tmp_path / name
    path.write_text(text)
    return prose.measure([path])


@pytest.mark.parametrize(
    ("docstring", "marks"),
    [
        ("Return the end offset of a queue.", []),
        ("Return the end; the caller holds the lock.", ["semicolon"]),
        ("What a queue holds at its end.", ["question"]),
        ("Return a value that nobody reads.", ["idiom: nobody"]),
        (f"Return {'very ' * 30}long offsets.", ["33 words"]),
        ("Return `a; b; what is said` as one word.", []),
    ],
)
def test_a_docstring_gets_its_marks(tmp_path: Path, docstring: str, marks: list[str]) -> None:
    report = measure(tmp_path, "m.py", f'def f():\n    """{docstring}"""\n')
    assert [name for mark in report.marks for name in mark.names] == marks
    assert report.figures["docstrings"].texts == 1


def test_attributes_have_docstrings_and_messages_are_strings(tmp_path: Path) -> None:
    report = measure(
        tmp_path,
        "m.py",
        'SIZE = 3\n"""Bytes of one frame."""\n'
        'raise ValueError(f"{SIZE} is not a size; give bytes")\n'
        'key = "a short key"\nquery = "SELECT a FROM b; SELECT c"\n'
        "# A comment of two\n# lines; it has a mark.\n",
    )
    assert report.figures["docstrings"].texts == 1
    assert report.figures["strings"].semicolons == 1
    assert report.figures["strings"].texts == 1
    assert report.figures["comments"].texts == 1
    assert report.figures["comments"].semicolons == 1


def test_code_and_headings_of_a_page_do_not_count(tmp_path: Path) -> None:
    report = measure(
        tmp_path,
        "page.md",
        "# What is said here; a heading\n\nA sentence of the page.\n\n"
        "```sh\nrun this; then that\n```\n\n| a cell of the table | it goes on here |\n",
    )
    figures = report.figures["pages"]
    assert (figures.sentences, figures.semicolons, figures.idioms) == (3, 0, 1)
    assert report.marks[0].text.line == 9


def test_a_figure_above_its_limit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text('"""Return the end; the caller holds the lock."""\n')
    assert prose.check_paths([path]) == [f"{path}: docstrings: semicolons 100.0, limit 3.0"]
    path.write_text('"""Return the end. The caller holds the lock."""\n')
    assert prose.check_paths([path]) == []


def test_plain_paths_exist() -> None:
    assert all(path.exists() for path in prose.find_plain_paths())
