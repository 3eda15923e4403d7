"""The demo's part in Spark: a program of `examples/`, which starts while other steps run."""

from __future__ import annotations

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
_ROW = re.compile(r"^\|(?P<topic>[^|]+)\|(?P<messages>\d+) *\|", re.MULTILINE)
# Spark lives for seconds here: compiled quickly, not well, by one thread.
_SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Counting:
    """A run of the program over a tier. Its errors and Spark's log go to the file `log`."""

    def __init__(self, tier: Path, log: Path) -> None:
        self._tier = tier
        self._log = log
        options = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {_SHORT_LIFE}".strip()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, _PROGRAM, tier],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "JDK_JAVA_OPTIONS": options},
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
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def show(self) -> dict[str, int]:
        """Print the command and what it printed, when it has ended; returns messages by topic."""
        show_command(Path(sys.executable), _PROGRAM, self._tier)
        printed, _ = self._process.communicate()
        print(printed, end="", flush=True)
        if self._process.returncode:
            sys.exit(f"demo: Spark failed; {self._log} says why (--no-spark leaves it out)")
        return {row["topic"].strip(): int(row["messages"]) for row in _ROW.finditer(printed)}
