"""Make the virtual environment of this clone, once, and print its Python.

Usage: python3 scripts/setup_env.py core|s3-server|spark|dev

`core` is what the package needs, with the broker and for a tier in S3; `s3-server` adds a server of
S3, `spark` PySpark, and a Java where the machine has none that does; `dev` has all of it and the
tools of the tests. A stamp is written
last: while it matches pyproject.toml, the constraints, the compiled core and the Python version,
nothing is done and no network is needed. Only the standard library is used: any Python 3.11 can run
it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"
CORE = (ROOT / "setup.py", ROOT / "tieredstore" / "message" / "_core.c")
"""The compiled core is built with the installation, where there is a compiler."""
EXTRAS = {
    "core": "broker,s3",
    "s3-server": "broker,s3,s3-server",
    "spark": "broker,s3,spark",
    "dev": "dev",
}
"""Each holds the first, the last one holds all."""
FIND_JAVA = "from tieredstore.spark.sessions.java import java_home; java_home()"


def fail(message: str) -> None:
    print(f"setup: {message}", file=sys.stderr)
    raise SystemExit(1)


def fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, *CORE):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def stamp(extras: str) -> Path:
    return VENV / f".complete-{extras}"


def is_complete(extras: str, wanted: str) -> bool:
    names = EXTRAS if extras == "core" else (extras, "dev")
    return any(has_stamp(name, wanted) for name in names)


def has_stamp(name: str, wanted: str) -> bool:
    return stamp(name).is_file() and stamp(name).read_text() == wanted


def succeeds(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def make_venv() -> None:
    version = sys.version.split()[0]
    print(f"setup: making {VENV.relative_to(ROOT)} with Python {version}", file=sys.stderr)
    shutil.rmtree(VENV, ignore_errors=True)
    if succeeds(sys.executable, "-m", "venv", str(VENV)):
        return
    # Debian without python3-venv: ensurepip is missing, and a half-built folder is left
    shutil.rmtree(VENV, ignore_errors=True)
    if not succeeds(sys.executable, "-m", "venv", "--without-pip", str(VENV)):
        fail("cannot make a virtual environment: install your system's python3-venv package")


def installer(python: Path) -> list[str]:
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--quiet", "--python", str(python)]
    quiet = ["--quiet", "--disable-pip-version-check"]
    if succeeds(str(python), "-m", "pip", "--version"):
        return [str(python), "-m", "pip", "install", *quiet]
    if succeeds(sys.executable, "-m", "pip", "--version"):
        return [sys.executable, "-m", "pip", "--python", str(python), "install", *quiet]
    fail("no pip: install your system's python3-venv or python3-pip package, or uv")
    raise AssertionError


def install(python: Path, extras: str) -> None:
    print(f"setup: installing {extras} dependencies", file=sys.stderr)
    command = [*installer(python), "--constraint", str(CONSTRAINTS), "--editable"]
    if subprocess.run([*command, f"{ROOT}[{extras}]"], check=False, stdout=sys.stderr).returncode:
        fail("the installation failed; the lines above say why (is there a network?)")


def main() -> None:
    extras = sys.argv[1] if len(sys.argv) > 1 else "core"
    if extras not in EXTRAS:
        fail(f"expected one of {', '.join(EXTRAS)}, found {extras!r}")
    python = VENV / "bin" / "python"
    with (ROOT / ".setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = fingerprint()
        if not is_complete(extras, wanted):
            if not any(VENV.glob(".complete-*")) or not python.exists():
                make_venv()
            # The constraints pin every version, so what is there stays as it is; but not while an
            # installation is under way.
            complete = [name for name in EXTRAS if has_stamp(name, wanted)]
            for old in VENV.glob(".complete-*"):
                old.unlink()
            install(python, EXTRAS[extras])
            if extras == "spark" and not succeeds(str(python), "-c", FIND_JAVA):
                install(python, "spark-jdk")
            for name in (*complete, extras):
                stamp(name).write_text(wanted)
    os.write(1, f"{python}\n".encode())


if __name__ == "__main__":
    main()
