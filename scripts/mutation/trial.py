"""Runner of tests over a copy of the tree, in which one module at a time is changed."""

from __future__ import annotations

import enum
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.mutation.sites import Mutant

SHORTEST_TIMEOUT_S = 120
FAILED_TESTS = 1
"""Exit code of pytest when tests ran and some failed."""


class Verdict(enum.Enum):
    KILLED = "killed"
    TIMED_OUT = "killed by the clock"
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Tried:
    mutant: Mutant
    verdict: Verdict
    seconds: float
    difference: str

    def describe(self) -> str:
        where = f"{self.mutant.path}:{self.mutant.line_number}"
        return f"{self.verdict.value}: {where}: {self.mutant.kind} ({self.seconds:.0f} s)"


class Copy:
    """Copy of the version-controlled files, with their content in the work tree. `close` removes
    it."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = folder
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        ).stdout.decode()
        for name in filter(None, names.split("\0")):
            source, target = root / name, folder / name
            if source.is_symlink() or source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "TMPDIR": str(folder / ".tmp"),
            "TIEREDSTORE_NO_SKIPS": "",
        }
        (folder / ".tmp").mkdir()
        # Compiled files are compared by hash, since two mutants may have the same size and second.
        compile_all = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "."]
        subprocess.run([sys.executable, *compile_all], cwd=folder, check=True)
        found = self._python("-c", "import tieredstore; print(tieredstore.__file__)")
        if not found.startswith(str(folder)):
            raise SystemExit(f"mutation: the copy's tests would import {found}")

    def _python(self, *arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command,
            cwd=self._root,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    @property
    def root(self) -> Path:
        return self._root

    def run(self, tests: Sequence[str], seed: int, timeout_s: float | None) -> bool | None:
        """Return whether these tests pass, or None after a timeout."""
        code = self.find_exit_code(tests, seed, timeout_s)
        return None if code is None else code == 0

    def find_exit_code(
        self, tests: Sequence[str], seed: int, timeout_s: float | None
    ) -> int | None:
        """Return pytest's exit code for these tests, or None after a timeout."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow"]
        command += ["-p", "no:cacheprovider", f"--hypothesis-seed={seed}", *tests]
        with subprocess.Popen(
            command,
            cwd=self._root,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                return process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # with the tests' own children
                shutil.rmtree(self._root / ".tmp", ignore_errors=True)
                (self._root / ".tmp").mkdir(exist_ok=True)

    def try_mutant(
        self, mutant: Mutant, tests: Sequence[str], seed: int, timeout_s: float
    ) -> Tried:
        """Apply the mutation, run the tests, and revert the mutation."""
        path = self._root / mutant.path
        source = path.read_bytes()
        begin = time.monotonic()
        try:
            path.write_bytes(mutant.apply(source))
            passed = self.run(tests, seed, max(timeout_s, SHORTEST_TIMEOUT_S))
        finally:
            path.write_bytes(source)
        verdicts = {True: Verdict.SURVIVED, False: Verdict.KILLED, None: Verdict.TIMED_OUT}
        seconds = time.monotonic() - begin
        return Tried(mutant, verdicts[passed], seconds, mutant.difference(source))

    def close(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
