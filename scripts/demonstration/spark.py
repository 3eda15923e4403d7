"""Spark part of the demo: a program of `examples/`. Its session starts early."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from scripts.demonstration.arguments import ROOT
from scripts.demonstration.commands import show_command

_PROGRAM = ROOT / "examples" / "count_by_topic.py"
_STARTER = Path(__file__).with_name("begun_session.py")
_ROW = re.compile(r"^\|(?P<topic>[^|]+)\|(?P<messages>\d+) *\|", re.MULTILINE)
# Spark runs for seconds here: compile quickly rather than well, on one thread.
_SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_CLASSES = Path(sys.prefix) / "spark-classes.jsa"
"""Archive of Spark's Java classes (class data sharing), with which Java starts faster. The first
demo creates the archive. A Java of another version ignores it."""


class Counting:
    """Running Spark program, until the end of the block. Spark's log and errors are written to the
    file `log`."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._tier = Path()
        self._archive = None
        classes = f"-XX:SharedArchiveFile={_CLASSES}"
        if not _CLASSES.exists():
            self._archive = _CLASSES.with_suffix(f".{os.getpid()}")
            classes = f"-XX:ArchiveClassesAtExit={self._archive}"
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, _STARTER, _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={
                    **os.environ,
                    "JDK_JAVA_OPTIONS": _add_options("JDK_JAVA_OPTIONS", _SHORT_LIFE),
                    # Not of the launcher of Spark.
                    "SPARK_SUBMIT_OPTS": _add_options("SPARK_SUBMIT_OPTS", classes),
                },
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        if self._archive is not None:
            self._archive.unlink(missing_ok=True)

    def begin(self, tier: Path) -> None:
        """Pass the tier, which must exist, to the waiting program."""
        self._tier = tier
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `show` reports a failure
            self.process.stdin.write(f"{tier}\n")
            self.process.stdin.flush()

    def show(self) -> dict[str, int]:
        """Wait for the end of the program, and print the command and its output. Return the number
        of messages by topic."""
        show_command(Path(sys.executable), _PROGRAM, self._tier)
        printed, _ = self.process.communicate()
        print(printed, end="", flush=True)
        if self.process.returncode:
            sys.exit(f"demo: Spark failed. Its log is {self._log}. --no-spark leaves it out")
        if self._archive is not None and self._archive.exists():
            self._archive.rename(_CLASSES)
        return {row["topic"].strip(): int(row["messages"]) for row in _ROW.finditer(printed)}


def _add_options(name: str, options: str) -> str:
    return f"{os.environ.get(name, '')} {options}".strip()
