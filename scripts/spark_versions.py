"""Run the smoke tests on the oldest and the newest Spark that pyproject.toml allows. Each has its
own environment in the user's cache, created once. scripts/constraints.txt pins all other
packages."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"
SPARKS = ("4.1.*", "4.3.*")
TESTS = ("tests/spark/test_smoke.py", "tests/spark/test_runner.py")


def environment(version: str) -> Path:
    """Return the Python interpreter of an environment with the given PySpark. A stamp file, written
    last, marks it as complete."""
    others = "".join(
        line
        for line in CONSTRAINTS.read_text().splitlines(keepends=True)
        if not line.startswith("pyspark==")
    )
    wanted = hashlib.sha256((sys.version + version + others).encode()).hexdigest()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tieredstore"
    venv = base / f"pyspark-{version.rstrip('.*')}"
    stamp, python = venv / ".complete", venv / "bin" / "python"
    if not stamp.is_file() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            constraints.write(others)
            constraints.flush()
            install = [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ]
            install += ["--constraint", constraints.name, f"pyspark=={version}", "pytest"]
            subprocess.run([*install, "--editable", f"{ROOT}[spark-jdk]"], check=True)
        stamp.write_text(wanted)
    return python


def main() -> int:
    failed = []
    for version in SPARKS:
        print(f"smoke tests on pyspark {version}", flush=True)
        command = [str(environment(version)), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        # PySpark 4.1 leaves sockets to the garbage collector.
        command += ["-W", "ignore::ResourceWarning", *TESTS]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(version)
    if failed:
        print(f"failed on pyspark {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
