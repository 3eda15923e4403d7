"""Runs a program on a Spark session that begins before the program does: what it takes longest to
get is there when its arguments are known.

Usage: python begun_session.py PROGRAM, with a line on standard input: the program's one argument.
Without a line nothing is run.
"""

from __future__ import annotations

import importlib
import runpy
import sys
import threading

from tieredstore.spark import session

_IMPORTED_LATER = ("pyspark.testing.utils", "tieredstore.spark.source")
"""What a session and the program import when Java is there; pandas, which the first one needs,
alone takes a second."""


def _import_early() -> None:
    for name in _IMPORTED_LATER:
        importlib.import_module(name)


if __name__ == "__main__":
    program = sys.argv[1]
    # While Java starts.
    threading.Thread(target=_import_early).start()
    session(conf={"spark.ui.enabled": "false"})
    argument = sys.stdin.readline().rstrip("\n")
    if argument:
        sys.argv = [program, argument]
        runpy.run_path(program, run_name="__main__")
