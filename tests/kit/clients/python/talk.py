"""Line protocol between a client program and its test (tests/kit/clients/program.py)."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any


def serve(verbs: Mapping[str, Callable[[dict[str, Any]], Any]]) -> None:
    """Answer the requests from stdin one by one. Output of client libraries goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"ok": "ready"}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_answer(verbs, request)), file=out, flush=True)
    os._exit(0)  # clients leave threads behind


def _answer(
    verbs: Mapping[str, Callable[[dict[str, Any]], Any]], request: dict[str, Any]
) -> dict[str, Any]:
    try:
        return {"ok": verbs[request["verb"]](request)}
    except Exception as error:
        traceback.print_exc()
        code = getattr(error, "code", None)
        number = code if isinstance(code, int) else None
        return {"error": str(error), "type": type(error).__name__, "code": number}
