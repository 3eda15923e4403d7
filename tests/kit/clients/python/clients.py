"""Apache's Python client as a program. `VERBS` maps names to functions."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from talk import serve  # type: ignore[import-not-found]

VERBS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "version": lambda _request: version("rocketmq-python-client"),
}

if __name__ == "__main__":
    serve(VERBS)
