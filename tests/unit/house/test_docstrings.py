"""The docstring of a public function begins with an imperative verb. Properties may have noun
phrases. The docstring of a command is its help text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.kit.paths import ROOT

FOLDERS = ("tieredstore", "providers", "metadata")
ARTICLES_PRONOUNS_NUMBERS = """
    a all an each every everything it its most no none nothing one only several that the their
    there these this those three two us whose
"""
VAGUE_VERBS = """
    say tell
"""
QUESTIONS_PREPOSITIONS_ADVERBS = """
    after and as at before by exactly for from how in not of on so to up what when where whether
    which who why with without
"""
NOUNS_AND_ADJECTIVES = """
    ascending blocking bytes called consecutive entry epoch false file first fresh full iso json
    key last messages names neighbours new offset offsets ranged schema seconds segment size sizes
    sorted topic true
"""
NO_VERBS = frozenset(
    (
        ARTICLES_PRONOUNS_NUMBERS
        + QUESTIONS_PREPOSITIONS_ADVERBS
        + NOUNS_AND_ADJECTIVES
        + VAGUE_VERBS
    ).split()
)
EXEMPT = ("property", ".setter", ".command(", ".group(", "overload")


def begins_with_a_verb(docstring: str) -> bool:
    word = docstring.split(maxsplit=1)[0].strip("`,.:").lower()
    if word == "no-op":
        return True
    is_plural_or_third_person = word.endswith("s") and not word.endswith("ss")
    return word.isalpha() and word not in NO_VERBS and not is_plural_or_third_person


def faults_of(text: str) -> list[str]:
    """Return the public functions and methods whose docstring does not begin with a verb."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = [ast.unparse(one) for one in node.decorator_list]
        if node.name.startswith("_") or any(text in one for one in decorators for text in EXEMPT):
            continue
        docstring = ast.get_docstring(node)
        if docstring and not begins_with_a_verb(docstring):
            found.append(f"{node.lineno} {node.name}: {docstring.splitlines()[0]}")
    return found


def modules() -> list[Path]:
    return sorted({path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")})


def test_docstrings_begin_with_a_verb() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{fault}"
        for path in modules()
        for fault in faults_of(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("docstring", "is_right"),
    [
        ("Return the rows.", True),
        ("Process one row.", True),
        ("`forget` all paths.", True),
        ("No-op: a file has no seal.", True),
        ("The rows of a queue.", False),
        ("Rows of a queue.", False),
        ("Raises Invalid.", False),
        ("Tell whether it is open.", False),
        ("int64[n]: offsets.", False),
        ("`Rows` of a queue.", False),
    ],
)
def test_the_rule(docstring: str, is_right: bool) -> None:
    module = f'def look() -> None:\n    """{docstring}"""\n'
    assert (faults_of(module) == []) == is_right


@pytest.mark.parametrize("head", ["@property\n", "@click.command('report')\n"])
def test_what_is_exempt(head: str) -> None:
    assert faults_of(f'{head}def look() -> None:\n    """The rows."""\n') == []


def test_all_folders_are_looked_at() -> None:
    rooms = {path.relative_to(ROOT).parts[0] for path in modules()}
    assert rooms == set(FOLDERS)
