"""Detection of the compiled core (`docs/adr/0007-compiled-core.md`). Callers check `IS_COMPILED`,
and use the Python version if a function of `_core` returns None. Set TIEREDSTORE_PURE=1 in the
environment to disable the core."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Final

CORE_VERSION: Final = 6
"""Version of the compiled extension that this Python code can call."""


def _find() -> bool:
    if os.environ.get("TIEREDSTORE_PURE") == "1":
        return False
    try:
        found = import_module("tieredstore.message._core")
    except ImportError:
        return False
    return bool(found.VERSION == CORE_VERSION)  # an update may leave an older one there


IS_COMPILED: Final = _find()
