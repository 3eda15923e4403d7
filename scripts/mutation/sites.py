"""Possible mutations of a module, each as an edit of its source.

Some code is never mutated: annotations, docstrings and messages, decorators, log calls, assertions
(they state invariants), and code for type checkers.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "+"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
OTHER_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
LOGGERS = {"_LOG", "_log", "LOG", "logger", "logging", "warnings"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """Replacement of bytes [begin, end) of a module by `text`. `kind`: kind of the mutation.
    `line`: the mutated line of the module, without indentation."""

    path: Path
    kind: str
    begin: int
    end: int
    text: str
    line_number: int
    line: str

    def apply(self, source: bytes) -> bytes:
        """Return the mutated module."""
        return source[: self.begin] + self.text.encode() + source[self.end :]

    def changed_line(self, source: bytes) -> str:
        """Return the first changed line in its mutated form, without indentation."""
        return self.apply(source).split(b"\n")[self.line_number - 1].decode().strip()

    def difference(self, source: bytes) -> str:
        lines = difflib.unified_diff(
            source.decode().splitlines(),
            self.apply(source).decode().splitlines(),
            f"{self.path}:{self.line_number}",
            self.kind,
            lineterm="",
            n=2,
        )
        return "\n".join(lines)

    def is_other_program(self, source: bytes) -> bool:
        """Return whether the mutated module compiles and differs from the original."""
        try:
            return ast.dump(ast.parse(self.apply(source))) != ast.dump(ast.parse(source))
        except SyntaxError:
            return False


def find_mutants(path: Path, source: bytes) -> list[Mutant]:
    """Return every mutation of the module, in line order. `path`: name of the module in reports and
    exclusions."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda one: (one.begin, one.kind, one.text))


class _Finder(ast.NodeVisitor):
    def __init__(self, path: Path, source: bytes) -> None:
        self._path = path
        self._source = source
        self._lines = source.split(b"\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.found: list[Mutant] = []

    # Where things are

    def _begin(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self._source[self._begin(node) : self._end(node)].decode()

    def _add(self, kind: str, begin: int, end: int, text: str) -> None:
        number = self._source.count(b"\n", 0, begin)
        line = self._lines[number].decode().strip()
        self.found.append(Mutant(self._path, kind, begin, end, text, number + 1, line))

    def _replace(self, kind: str, node: ast.expr | ast.stmt, text: str) -> None:
        self._add(kind, self._begin(node), self._end(node), text)

    def _swap(self, kind: str, left: ast.expr, right: ast.expr, names: tuple[str, str]) -> None:
        """Replace the operator between two expressions by another operator."""
        start = self._end(left)
        between = self._source[start : self._begin(right)].decode()
        pattern = re.escape(names[0]).replace(r"\ ", r"\s+")
        match = re.search(rf"(?<![<>=!]){pattern}(?![<>=])", re.sub(r"#.*", _blank, between))
        if match is not None:
            begin = start + len(between[: match.start()].encode())
            self._add(kind, begin, begin + len(match[0]), names[1])

    # Expressions

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            self._swap("comparison", left, right, COMPARISONS[type(operator)])
            left = right
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        names = ARITHMETIC.get(type(node.op))
        if names is not None and not _is_text(node.left) and not _is_text(node.right):
            self._swap("arithmetic", node.left, node.right, names)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        names = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._swap("condition", left, right, names)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace("condition", node, f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._replace("condition", node.test, f"(not ({self._text(node.test)}))")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if node.value is True or node.value is False:
            self._replace("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace("constant", node, f"({self._text(node)} + 1)")
            if node.value:
                self._replace("constant", node, f"({self._text(node)} - 1)")

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in OTHER_NAMES:
            self._replace("function", node.func, OTHER_NAMES[node.func.id])
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave f-strings unchanged, because most of them are messages."""

    # Statements

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._replace("condition", node.test, f"not ({self._text(node.test)})")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or _is_log_call(node.value):
            return
        if isinstance(node.value, ast.Call):
            self._replace("removed call", node, "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace("removed raise", node, "pass")  # Its message is left alone.

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._replace("removed return", node, "pass")
        elif not _is_empty(node.value):  # None and an empty result are equivalent here.
            self._replace("removed return", node, "return None")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace("removed assignment", node, "pass")
        self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip assertions."""

    # Definitions: not their decorators and annotations

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
            return
        for statement in node.body:
            self.visit(statement)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _is_empty(node: ast.expr) -> bool:
    return (isinstance(node, ast.Constant) and not node.value) or (
        isinstance(node, ast.List | ast.Tuple) and not node.elts
    )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _is_log_call(node: ast.expr) -> bool:
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id in LOGGERS


def iterate_modules(root: Path, folders: tuple[str, ...]) -> Iterator[Path]:
    """Yield the given modules, and those in the given folders, as paths below `root`."""
    for folder in folders:
        place = root / folder
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            yield path.relative_to(root)
