"""Whether the compiled core is there (`docs/adr/0007-compiled-core.md`).

Whoever uses it asks `IS_COMPILED`, and does the same in Python when a function of `_core` answers
None. TIEREDSTORE_PURE=1 in the environment: as if it was not built.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Final

CORE_VERSION: Final = 6
"""Of the extension that this code calls."""


def _find() -> bool:
    if os.environ.get("TIEREDSTORE_PURE") == "1":
        return False
    try:
        found = import_module("tieredstore.message._core")
    except ImportError:
        return False
    return bool(found.VERSION == CORE_VERSION)  # an older one may lie there after an update


IS_COMPILED: Final = _find()
