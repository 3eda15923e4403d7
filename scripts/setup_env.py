"""Make the virtual environment of this clone, once, and print its Python.

Usage: python3 scripts/setup_env.py core|s3-server|docs|tables|spark|dev

`core` has the dependencies of the package, with the broker and S3. `s3-server` adds an S3 server,
`docs` the generator of the documentation site, `tables` pyarrow, pandas, DuckDB, Polars, Iceberg,
Delta and reports. `spark` adds PySpark to `tables`, and a Java if the machine lacks one. `dev`
contains all of these and the test tools. A stamp is written last. As long as it matches
pyproject.toml, the constraints, the compiled core, the Python version and the clone's path, nothing
is done and no network is needed. `python.sh` can read the stamp. This file needs only Python 3.11
and the standard library.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"
CORE = (ROOT / "setup.py", *sorted((ROOT / "tieredstore" / "message").glob("_*.[ch]")))
"""Source files of the compiled core. The installation builds the core if there is a compiler."""
_TABLES = "broker,s3,jobs,pandas,duckdb,polars,iceberg,delta"
EXTRAS = {
    "core": "broker,s3",
    "s3-server": "broker,s3,s3-server",
    "docs": "broker,s3,docs",
    "tables": _TABLES,
    "spark": f"{_TABLES},spark",
    "dev": "dev",
}
HOLDERS = {
    "core": tuple(EXTRAS),
    "s3-server": ("s3-server", "dev"),
    "docs": ("docs", "dev"),
    "tables": ("tables", "spark", "dev"),
    "spark": ("spark", "dev"),
    "dev": ("dev",),
}
"""For each environment, the environments that contain all its packages, including itself."""
DOWNLOADS = {
    "core": "about 60 MB",
    "s3-server": "about 90 MB",
    "docs": "about 80 MB",
    "tables": "about 300 MB",
    "spark": "about 760 MB, 450 of them PySpark",
    "dev": "about 1 GB, 450 of them PySpark",
}
"""Size of the downloads that an empty environment needs, as text."""
FIND_JAVA = "from tieredstore.spark.sessions.java import java_home; java_home()"


def fail(message: str) -> None:
    print(f"setup: {message}", file=sys.stderr)
    raise SystemExit(1)


def fingerprint() -> str:
    """Return the properties on which an environment depends, one per line: hash of its source
    files, path of the interpreter, path of the clone, and Python version. python.sh reads these
    lines."""
    digest = hashlib.sha256()
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, *CORE):
        digest.update(path.read_bytes())
    lines = (digest.hexdigest(), os.path.realpath(sys.executable), ROOT, ascii(sys.version))
    return "".join(f"{line}\n" for line in lines)


def stamp(extras: str) -> Path:
    return VENV / f".complete-{extras}"


def is_complete(extras: str, wanted: str) -> bool:
    return any(has_stamp(name, wanted) for name in HOLDERS[extras])


def has_stamp(name: str, wanted: str) -> bool:
    return stamp(name).is_file() and stamp(name).read_text() == wanted


def is_usable(wanted: str) -> bool:
    """Return whether the environment is complete, and was made at this path by this interpreter."""
    made = [path.read_text().splitlines()[1:] for path in VENV.glob(".complete-*")]
    # A stamp of an earlier version of this script has only the hash.
    return (VENV / "bin" / "python").exists() and any(
        place in ([], wanted.splitlines()[1:]) for place in made
    )


def succeeds(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def make_venv() -> None:
    version = sys.version.split()[0]
    print(f"setup: making {VENV.relative_to(ROOT)} with Python {version}", file=sys.stderr)
    shutil.rmtree(VENV, ignore_errors=True)
    if succeeds(sys.executable, "-m", "venv", str(VENV)):
        return
    # On Debian without python3-venv, ensurepip is missing, and an incomplete folder is left.
    shutil.rmtree(VENV, ignore_errors=True)
    if not succeeds(sys.executable, "-m", "venv", "--without-pip", str(VENV)):
        fail("cannot make a virtual environment: install your system's python3-venv package")


def installer(python: Path) -> list[str]:
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", str(python)]
    # Imported modules compile themselves, which are a small part of the installation.
    options = ["--disable-pip-version-check", "--no-compile"]
    if succeeds(str(python), "-m", "pip", "--version"):
        return [str(python), "-m", "pip", "install", *options]
    if succeeds(sys.executable, "-m", "pip", "--version"):
        return [sys.executable, "-m", "pip", "--python", str(python), "install", *options]
    fail("no pip: install your system's python3-venv or python3-pip package, or uv")
    raise AssertionError


def install(python: Path, extras: str) -> None:
    """Install this clone with its extras. PySpark has more files than all other packages and is
    installed in parallel. The constraints pin every version, so that both installations agree."""
    command = [*installer(python), "--constraint", str(CONSTRAINTS)]
    names = extras.split(",")
    rest = [name for name in names if name != "spark"]
    with ThreadPoolExecutor() as pool:
        beside = None
        if rest != names:
            beside = pool.submit(run_installer, [*command, "pyspark"], shows_progress=False)
        code = run_installer([*command, "--editable", f"{ROOT}[{','.join(rest)}]"])
        if beside is not None:
            code = beside.result() or code
    if code:
        fail("the installation failed. The lines above say why (is there a network?)")


def run_installer(command: list[str], *, shows_progress: bool = True) -> int:
    """Run an installer. On a terminal it shows its own progress. Elsewhere, or without
    `shows_progress`, print its lines about downloads, and its last lines after a failure."""
    if shows_progress and sys.stderr.isatty():
        return subprocess.run(command, check=False, stdout=sys.stderr).returncode
    last: deque[str] = deque(maxlen=40)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line)
            if "ownload" in line:
                print(f"setup: {line.strip()}", file=sys.stderr, flush=True)
    if process.returncode:
        print("".join(last), file=sys.stderr, end="")
    return process.returncode


def main() -> None:
    extras = sys.argv[1] if len(sys.argv) > 1 else "core"
    if extras not in EXTRAS:
        fail(f"expected one of {', '.join(EXTRAS)}, found {extras!r}")
    python = VENV / "bin" / "python"
    with (ROOT / ".setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = fingerprint()
        if not is_complete(extras, wanted):
            if not is_usable(wanted):
                make_venv()
            # The constraints pin every version, so installed packages stay unchanged, but not
            # during an installation.
            complete = [name for name in EXTRAS if has_stamp(name, wanted)]
            for old in VENV.glob(".complete-*"):
                old.unlink()
            print(
                f"setup: installing the packages of `{extras}` into {VENV.relative_to(ROOT)}, once "
                f"({DOWNLOADS[extras]} to download, less what is there or was downloaded before)",
                file=sys.stderr,
            )
            install(python, EXTRAS[extras])
            if extras == "spark" and not succeeds(str(python), "-c", FIND_JAVA):
                install(python, "spark-jdk")
            for name in (*complete, extras):
                stamp(name).write_text(wanted)
    os.write(1, f"{python}\n".encode())


if __name__ == "__main__":
    main()
