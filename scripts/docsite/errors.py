"""Reference page of errors and exit codes, generated from the error classes and the command line's
table."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from tieredstore import errors
from tieredstore.cli.exits import MEANINGS, exit_code_of

_HEAD = """# Errors and exit codes

This page is generated from `tieredstore/errors.py` and `tieredstore/cli/exits.py`. Every error that
is raised on purpose is one of these classes. Its message names the object, what was expected and
what was found. The attributes `topic`, `queue_id`, `offset` and `path` hold the same facts, or
None.

| error | below | exit code | meaning |
|---|---|---|---|
"""


def page() -> str:
    """Return the page, with one row per error and one row per exit code."""
    codes = "".join(f"| {int(code)} | {meaning} |\n" for code, meaning in MEANINGS.items())
    rows = "".join(
        f"| `{kind.__name__}` | `{kind.__mro__[1].__name__}` | {int(exit_code_of(kind('')))} "
        f"| {' '.join(inspect.getdoc(kind).split())} |\n"  # type: ignore[union-attr]
        for kind in error_classes()
    )
    return f"{_HEAD}{rows}\n## Exit codes\n\n| code | meaning |\n|---|---|\n{codes}"


def error_classes() -> Iterator[type[errors.TieredStoreError]]:
    """Yield the error classes in the order of their definition."""
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.TieredStoreError):
            yield value
