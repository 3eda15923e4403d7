"""Measure how plain the English of the repository is: docstrings, comments, messages and pages.

    scripts/prose.py [PATH ...]            print one row per kind of text
    scripts/prose.py --marks [PATH ...]    print each marked sentence with its place
    scripts/prose.py --worst 30            print the sentences with the most marks
    scripts/prose.py --sample 50 --seed 3  print random docstrings, to be judged by a reader
    scripts/prose.py --check               exit 1 if a figure of a plain path is above its limit

A mark is a semicolon, a sentence of more than 30 words, an idiom, or a docstring that opens with a
question word. Asides in dashes or parentheses have a limit too, so that a semicolon does not become
a dash. `[tool.prose] plain` in pyproject.toml lists the paths that `--check` holds to the limits.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
DEFAULT_PATHS: Final = (
    "tieredstore",
    "providers",
    "metadata",
    "tests",
    "benchmarks",
    "scripts",
    "examples",
    "localstack",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs",
)
SKIPPED_FOLDERS: Final = frozenset(
    (".git", ".venv", "node_modules", "__pycache__", "build", "dist", "site")
)
LONG_WORDS: Final = 30
QUESTION: Final = re.compile(
    r"(What|Which|How|Where|Who|Whose|Why|That|By which|In which|From which|Up to where|For whom)\b"
)
IDIOMS: Final = re.compile(
    "|".join(
        (
            r"(?<!can )(?<!cannot )(?<!to )\btells? (of|that|which|whether|how|what)\b",
            r"\b(is|are|was) (said|told)\b",
            r"\bsays? (so|how|what|which|whether|where)\b",
            r"\bnobody('s)?\b",
            r"\bwhoever\b",
            r"\b(goes|go|gone) by\b",
            r"\bgo(es)? on\b",
            r"\bmade (anew|again)\b",
            r"\banew\b",
            r"\ba look\b",
            r"\bas long as (that|this|it) (is|was)\b",
            r"\bin hand\b",
            r"\bthat is so\b",
            r"\bnothing of\b",
            r"\bthere is none\b",
            r"\bone that (is|was|has)\b",
            r"\bwhat (is|was|has|lies|stands|comes|came|goes|waits|remains)\b",
            r"\bby what\b",
            r"\bstands? (in|on|at|behind|before|beside|there)\b",
            r"\bbehind (it|them|that|this|which)\b",
            r"\bhold up\b",
            r"\b(any|no) more(?=[.,;:)]|$)",
            r"\bto and fro\b",
            r"\bmeanwhile(?=[.,;:)]|$)",
            r"\bhow-manieth\b",
            r"\bhas come so far\b",
        )
    ),
    re.IGNORECASE,
)
ASIDE: Final = re.compile(r" \([^()]{12,}\)| [–—-] ")
_PROSE_START: Final = re.compile(r"[A-Za-z%{'`X]")
_CODE: Final = re.compile(
    r"\b(SELECT|select|FROM|CREATE|echo|const)\b|[<>{}\\]{2}|^\S+="
    r"|(?m:^\s*(import|from) [\w.]+( import|[;,]|$))"
)
_PUNCTUATION: Final = re.compile(r"[.,:;?!]")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?:])\s+(?=[A-Z0-9`(\"'])|\n\s*\n|\n\s*[-*|] ?")


class Limits(NamedTuple):
    """Limits of one kind of text per 100 sentences. `questions`: per 100 docstrings."""

    semicolons: float
    long: float
    idioms: float
    asides: float
    questions: float = 100.0


LIMITS: Final = {
    "docstrings": Limits(3.0, 5.0, 1.5, 15.0, 0.5),
    "comments": Limits(4.0, 6.0, 1.5, 15.0),
    "strings": Limits(4.0, 8.0, 1.5, 15.0),
    "pages": Limits(5.0, 6.0, 1.5, 18.0),
}


class Text(NamedTuple):
    """One text of a file. Its kind is a key of LIMITS."""

    path: Path
    line: int
    kind: str
    text: str


class Mark(NamedTuple):
    """One sentence with its marks."""

    weight: int
    text: Text
    sentence: str
    names: tuple[str, ...]


@dataclass
class Figures:
    """Counts over all texts of one kind."""

    texts: int = 0
    sentences: int = 0
    words: int = 0
    semicolons: int = 0
    long: int = 0
    idioms: int = 0
    asides: int = 0
    questions: int = 0

    def rates(self) -> Limits:
        """Return the figures per 100 sentences, and `questions` per 100 texts."""
        per = 100 / max(self.sentences, 1)
        return Limits(
            self.semicolons * per,
            self.long * per,
            self.idioms * per,
            self.asides * per,
            self.questions * 100 / max(self.texts, 1),
        )


@dataclass
class Report:
    """The figures of all kinds, and every marked sentence."""

    figures: dict[str, Figures] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)

    def add(self, text: Text) -> None:
        """Measure one text."""
        sums = self.figures.setdefault(text.kind, Figures())
        sums.texts += 1
        if text.kind == "docstrings" and QUESTION.match(text.text.strip()):
            sums.questions += 1
            self.marks.append(Mark(1, text, text.text.strip().splitlines()[0], ("question",)))
        for sentence in split_sentences(text.text):
            words = len(sentence.split())
            semicolons = sentence.count(";")
            is_long = words > LONG_WORDS
            idiom = IDIOMS.search(sentence)
            sums.sentences += 1
            sums.words += words
            sums.semicolons += semicolons
            sums.long += is_long
            sums.idioms += idiom is not None
            sums.asides += len(ASIDE.findall(sentence))
            names = (
                *(("semicolon",) if semicolons else ()),
                *((f"{words} words",) if is_long else ()),
                *((f"idiom: {idiom[0]}",) if idiom else ()),
            )
            if names:
                weight = semicolons + 2 * is_long + 2 * (idiom is not None)
                self.marks.append(Mark(weight, text, sentence, names))

    def find_excess(self) -> list[str]:
        """Return one line for each figure above its limit."""
        return [
            f"{kind}: {name} {rate:.1f}, limit {limit}"
            for kind, figures in sorted(self.figures.items())
            for name, rate, limit in zip(Limits._fields, figures.rates(), LIMITS[kind], strict=True)
            if rate > limit
        ]


def split_sentences(text: str) -> list[str]:
    """Return the sentences of at least three words. Code in backquotes counts as one word."""
    text = re.sub(r"`[^`]*`", "X", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = (" ".join(part.split()) for part in _SENTENCE_END.split(text))
    return [part for part in parts if len(part.split()) >= 3]


def read_python(path: Path) -> Iterator[Text]:
    """Yield the docstrings, strings and comments of a module. Raises SyntaxError."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    docstrings = dict(_find_docstrings(tree))
    pieces = {
        piece
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for piece in ast.walk(node)
        if piece is not node
    }
    for node, text in docstrings.items():
        yield Text(path, node.lineno, "docstrings", text)
    for part in ast.walk(tree):
        if isinstance(part, ast.JoinedStr):
            values = part.values
            text = "".join(
                str(one.value) if isinstance(one, ast.Constant) else "X" for one in values
            )
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            if part in docstrings or part in pieces:
                continue
            text = part.value
        else:
            continue
        if _is_prose(text):
            yield Text(path, part.lineno, "strings", text)
    for line, text in _join_comments(source):
        yield Text(path, line, "comments", text)


def _is_prose(text: str) -> bool:
    """Return whether a string may be a message. Code and long lists of names are not messages."""
    words = len(text.split())
    if words > LONG_WORDS and not _PUNCTUATION.search(text):
        return False
    return words >= 4 and bool(_PROSE_START.match(text.strip())) and not _CODE.search(text)


def _find_docstrings(tree: ast.Module) -> Iterator[tuple[ast.Constant, str]]:
    """Yield the docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                value = statement.value.value
                if isinstance(value, str):
                    yield statement.value, re.sub(r"\n[ \t]+", "\n", value)


def _join_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield each run of comment lines with its first line number."""
    run: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(type:|noqa|pragma|!)", token.string):
            continue
        if run and token.start[0] != last + 1:
            yield first, " ".join(run)
            run = []
        first = first if run else token.start[0]
        last = token.start[0]
        run.append(token.string.lstrip("# "))
    if run:
        yield first, " ".join(run)


def read_markdown(path: Path) -> Iterator[Text]:
    """Yield the paragraphs, list items and table cells of a page, without code and headings."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(
        r"```.*?```", lambda code: "\n" * max(code[0].count("\n"), 2), text, flags=re.DOTALL
    )
    text = re.sub(r"^(!!!|\?\?\?).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\n\n((?:    |\t)[^\n]*\n?)+", _drop_code, text)
    text = re.sub(r"^#+ .*$", "", text, flags=re.MULTILINE)
    line = 1
    for part in re.split(r"(\n\s*\n)", text):
        if part.strip() and not re.match(r"\s*\|[-: |]+\|?\s*$", part):
            yield Text(path, line, "pages", re.sub(r"\|", "\n\n", part))
        line += part.count("\n")


def _drop_code(block: re.Match[str]) -> str:
    """Remove an indented block of a docstring unless it contains a sentence, because it is code."""
    if re.search(r"[a-z]{3,} [a-z]{2,} [a-z]{2,}.*[.:]$", block[0], re.MULTILINE):
        return block[0]
    return "\n" * max(block[0].count("\n"), 2)


def read_texts(paths: Iterable[Path]) -> Iterator[Text]:
    """Yield the texts of Python modules and Markdown pages in files and folders."""
    for path in paths:
        for file in [path] if path.is_file() else _find_files(path):
            if file.suffix == ".py":
                yield from read_python(file)
            elif file.suffix == ".md":
                yield from read_markdown(file)


def _find_files(folder: Path) -> Iterator[Path]:
    """Yield files below a folder, by name. Links to folders are not followed."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if not path.is_symlink() and path.name not in SKIPPED_FOLDERS:
                yield from _find_files(path)
        else:
            yield path


def find_plain_paths() -> list[Path]:
    """Return the paths that pyproject.toml checks against the limits. Each page that matches a
    pattern is a path of its own."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        plain = tomllib.load(file)["tool"]["prose"]["plain"]
    return [path for pattern in plain for path in sorted(ROOT.glob(pattern)) or [ROOT / pattern]]


def measure(paths: Iterable[Path]) -> Report:
    """Measure all texts below the given paths."""
    report = Report()
    for text in read_texts(paths):
        report.add(text)
    return report


def check_paths(paths: Iterable[Path]) -> list[str]:
    """Return one line for each path and figure above its limit."""
    return [
        f"{_shorten(path)}: {excess}" for path in paths for excess in measure([path]).find_excess()
    ]


def _shorten(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def _print_table(report: Report) -> None:
    heads = ("semicolons", "over 30 w", "idioms", "asides", "questions")
    print(f"{'text':<11}{'texts':>7}{'sentences':>10}{'words/s':>8}", end="")
    print("".join(f"{head:>11}" for head in heads), "  (per 100)")
    for kind, limits in LIMITS.items():
        sums = report.figures.get(kind)
        if sums is None:
            continue
        row = f"{kind:<11}{sums.texts:>7}{sums.sentences:>10}"
        row += f"{sums.words / max(sums.sentences, 1):>8.1f}"
        for rate, limit in zip(sums.rates(), limits, strict=True):
            shown = "" if limit == 100 else f"{rate:.1f}{'!' if rate > limit else ''}"
            row += f"{shown:>11}"
        print(row)


def _print_marks(marks: Iterable[Mark]) -> None:
    for mark in marks:
        place = f"{_shorten(mark.text.path)}:{mark.text.line}"
        print(f"{place}: [{', '.join(mark.names)}] {mark.sentence[:260]}")


def _print_sample(texts: list[Text], count: int, seed: int) -> None:
    chosen = random.Random(seed).sample(texts, min(count, len(texts)))
    for text in chosen:
        print(f"{_shorten(text.path)}:{text.line}: {' '.join(text.text.split())[:300]}")


def main() -> int:
    """Run the command. Returns its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    parser.add_argument("--marks", action="store_true", help="print each marked sentence")
    parser.add_argument("--worst", type=int, default=0, metavar="N")
    parser.add_argument("--sample", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit 1 above a limit")
    options = parser.parse_args()
    if options.check:
        excess = check_paths(options.paths or find_plain_paths())
        print("\n".join(excess) or "prose: all plain paths are within the limits")
        return 1 if excess else 0
    paths = options.paths or [ROOT / path for path in DEFAULT_PATHS if (ROOT / path).exists()]
    if options.sample:
        texts = [text for text in read_texts(paths) if text.kind == "docstrings"]
        _print_sample(texts, options.sample, options.seed)
        return 0
    report = measure(paths)
    if options.marks:
        _print_marks(report.marks)
        return 0
    _print_table(report)
    _print_marks(sorted(report.marks, key=lambda mark: -mark.weight)[: options.worst])
    return 0


if __name__ == "__main__":
    sys.exit(main())
