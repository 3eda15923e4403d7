"""Runs a program on a Spark session that begins before the program does: what it takes longest to
get is there when its arguments are known.

Usage: python begun_session.py PROGRAM, with a line on standard input: the program's one argument.
Without a line nothing is run.
"""

from __future__ import annotations

import runpy
import sys

from tieredstore.spark import session

if __name__ == "__main__":
    program = sys.argv[1]
    session()
    argument = sys.stdin.readline().rstrip("\n")
    if argument:
        sys.argv = [program, argument]
        runpy.run_path(program, run_name="__main__")
