"""Reference page of the Python API, generated from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import tieredstore
from tieredstore import jobs, stores, table
from tieredstore.contracts import message_store
from tieredstore.message.encoding import Message
from tieredstore.message.record import StoredMessage
from tieredstore.spark import enable
from tieredstore.testing import broker

_HEAD = """# Python API

This page is generated from the docstrings. [From Python](../python.md) has examples.

"""
_LINE: Final = 90
_DEFAULT: Final = re.compile(r"^<.*>$")
"""Pattern of a default value that cannot be written as Python source, such as `<Clock object>`."""
SECTIONS: Final[tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]] = (
    (
        "A tier as a table",
        (
            ("tieredstore.open", table.open_tier),
            ("tieredstore.table.Tier", table.Tier),
            ("tieredstore.table.Scan", table.Scan),
        ),
    ),
    (
        "A message store",
        (
            ("tieredstore.open_store", stores.open_store),
            ("tieredstore.Message", Message),
            ("MessageStore", message_store.MessageStore),
            ("MessageReader", message_store.MessageReader),
            ("GetRequest", message_store.GetRequest),
            ("GetMessageResult", message_store.GetMessageResult),
            ("PutMessageResult", message_store.PutMessageResult),
            ("StoredMessage", StoredMessage),
        ),
    ),
    ("Jobs", tuple((f"tieredstore.jobs.{name}", getattr(jobs, name)) for name in jobs.__all__)),
    ("Spark", (("tieredstore.spark.enable", enable),)),
    ("A broker in tests", (("tieredstore.testing.Broker", broker.Broker),)),
)


def page() -> str:
    """Return the page: a section for each part, with functions, classes and their methods."""
    parts = [_HEAD]
    for title, members in SECTIONS:
        parts.append(f"## {title}\n\n")
        for name, member in members:
            parts += _describe(name, member, "###")
            if inspect.isclass(member):
                for method, value in public_members(member):
                    short = f"{name.rpartition('.')[2]}.{method}"
                    parts += _describe(short, value, "####", is_method=True)
    return "".join(parts)


_OTHERS: Final = frozenset(("__version__", "errors", "jobs", "testing"))
"""Public names that the page leaves out, because other pages or sections describe them."""


def public_names() -> list[str]:
    """Return the public names of `tieredstore` that the page documents."""
    return [name for name in tieredstore.__all__ if name not in _OTHERS]


def public_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the documented methods and properties of a class, in source order."""
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue
        found = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if (inspect.isfunction(found) or isinstance(found, property)) and inspect.getdoc(found):
            yield name, found


def _describe(name: str, member: Any, level: str, *, is_method: bool = False) -> Iterator[str]:
    yield f"{level} `{name}`\n\n"
    signature = _signature_of(name, member, is_method=is_method)
    if signature:
        yield f"```python\n{signature}\n```\n\n"
    yield f"{_markdown_of(inspect.getdoc(member) or '')}\n\n"


def _signature_of(name: str, member: Any, *, is_method: bool) -> str:
    if isinstance(member, property):
        return ""
    try:
        signature = inspect.signature(inspect.unwrap(member))
    except (TypeError, ValueError):
        return ""
    parameters = list(signature.parameters.values())[is_method:]
    if inspect.isclass(member) and not parameters:
        return ""
    shown = []
    for at, one in enumerate(parameters):
        before = parameters[at - 1].kind if at else inspect.Parameter.POSITIONAL_ONLY
        if one.kind is inspect.Parameter.KEYWORD_ONLY and before not in {
            inspect.Parameter.KEYWORD_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
        }:
            shown.append("*")
        shown.append(_parameter(one))
    result = signature.return_annotation
    arrow = "" if result is inspect.Signature.empty or inspect.isclass(member) else f" -> {result}"
    line = f"{name}({', '.join(shown)}){arrow}"
    if len(line) <= _LINE:
        return line
    return f"{name}(\n" + "".join(f"    {one},\n" for one in shown) + f"){arrow}"


def _parameter(one: inspect.Parameter) -> str:
    text = one.name
    if one.kind is inspect.Parameter.VAR_POSITIONAL:
        text = f"*{text}"
    elif one.kind is inspect.Parameter.VAR_KEYWORD:
        text = f"**{text}"
    if one.annotation is not inspect.Parameter.empty:
        kind = one.annotation
        text += f": {kind if isinstance(kind, str) else getattr(kind, '__name__', kind)}"
    if one.default is not inspect.Parameter.empty:
        text += f" = {_DEFAULT.sub('…', repr(one.default))}"
    return text


def _markdown_of(text: str) -> str:
    """Return a docstring as Markdown. Text in backquotes and indented examples stay code."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("    "):
            paragraphs.append(f"```python\n{inspect.cleandoc(paragraph)}\n```")
            continue
        parts = re.split(r"(`[^`]*`)", paragraph)
        paragraphs.append(
            "".join(p if p.startswith("`") else re.sub(r"([*_<>[\]])", r"\\\1", p) for p in parts)
        )
    return "\n\n".join(paragraphs)
