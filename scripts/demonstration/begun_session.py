"""Run a program on a Spark session that starts before the program's arguments are known, because
the start takes longest.

Usage: python begun_session.py PROGRAM. A line on standard input is the program's only argument.
Without a line the program is not run.
"""

from __future__ import annotations

import importlib
import runpy
import sys
import threading

from tieredstore.spark import session

_IMPORTED_LATER = ("pyspark.testing.utils", "tieredstore.spark.source")
"""Modules that the Spark session and the program need after Java has started. They are imported
while Java starts, because one of them imports pandas, and this takes a second."""


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
