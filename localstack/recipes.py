"""Installation, start and health check of each object store of the tests.

Only the standard library is used, so that any Python 3.11 can run it. Downloads and builds go into
the user's cache directory once. A second start needs no network.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ACCESS_KEY = "testing"
SECRET_KEY = "testing123"
LOCALSTACK_VERSION = "4.6.0"
LOCALSTACK_PYTHONS = ("python3.11", "python3.12", "python3")
"""Python interpreters that can run LocalStack, in the order of preference. The pinned release is
the newest one that supports Python 3.11. `constraints.txt` pins its packages."""
VERSITYGW_VERSION = "1.8.0"
VERSITYGW_MODULE = "github.com/versity/versitygw/cmd/versitygw"
BUCKET = "tier"
"""The empty bucket that each server has from its start."""


class NotHere(Exception):
    """Raised if this machine cannot run a server. The message names the missing part."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that runs in the folder of a server."""

    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Recipe of one server.

    `prepare`: install what `launch` needs into the cache, if necessary and permitted. `launch`: the
    command for a port and a data folder. `healthy`: return whether this server answers at an
    endpoint. `fill`: create the bucket on a healthy server.
    """

    prepare: Callable[[bool], Path]
    launch: Callable[[Path, int, Path], Launch]
    healthy: Callable[[str], bool]
    fill: Callable[[str], None]


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tieredstore-servers"


def run(command: Sequence[str | Path], **environment: str) -> None:
    """Run an installer. Raises NotHere with the end of its output."""
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotHere(f"{command[0]} {command[1]} failed: {done.stdout.strip()[-600:]}")


def answers(url: str, method: str = "GET") -> tuple[int, bytes] | None:
    """Request a URL. Return the status and the body, or None without an answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, method=method), timeout=5) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return None


def make_bucket(endpoint: str) -> None:
    """Create the bucket, for servers that check no signatures. Raises NotHere."""
    found = answers(f"{endpoint}/{BUCKET}", "PUT")
    if found is None or found[0] != 200:
        raise NotHere(f"{endpoint} makes no bucket {BUCKET!r}: {found}")


def _has_bucket(_endpoint: str) -> None:
    """Do nothing, because the bucket exists already: this server treats each folder that existed
    before its start as a bucket."""


# moto: the interpreter of this clone has it


def _find_moto(install: bool) -> Path:
    own = HERE.parent / ".venv" / "bin" / "python"
    for python in (own, Path(sys.executable)):
        if _has_moto(python):
            return python
    if not install:
        raise NotHere("moto is not installed: localstack/install moto does it, once")
    print("moto: setting up the environment of this clone (once)", file=sys.stderr)
    run(["bash", "-c", '. "$0" s3-server', HERE.parent / "scripts" / "python.sh"])
    if not _has_moto(own):
        raise NotHere(f"moto is not in {own.parent.parent}: pip install 'moto[server,s3]'")
    return own


def _has_moto(python: Path) -> bool:
    code = "import moto.server, werkzeug"
    if not python.exists():
        return False
    done = subprocess.run([python, "-c", code], capture_output=True, check=False)
    return done.returncode == 0


def _launch_moto(python: Path, port: int, _folder: Path) -> Launch:
    server = HERE / "moto_server.py"
    return Launch([str(python), str(server), "-H", "127.0.0.1", "-p", str(port)])


def _moto_is_healthy(endpoint: str) -> bool:
    found = answers(f"{endpoint}/moto-api/")
    return found is not None and found[0] == 200


# LocalStack: an environment of its own, because its pins contradict ours


def _install_localstack(install: bool) -> Path:
    target = cache_directory() / f"localstack-{LOCALSTACK_VERSION}"
    python, stamp = target / "bin" / "python", target / ".complete"
    wanted = (HERE / "constraints.txt").read_text()
    if stamp.is_file() and stamp.read_text() == wanted and python.exists():
        return python
    if not install:
        raise NotHere("it is not installed: localstack/install localstack does it, once")
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    base = _python_of_localstack()
    print(f"localstack: making its environment with {base} (2 min, once)", file=sys.stderr)
    # The pip of the outer interpreter installs into it, since Debian's venv may come without one.
    run([base, "-m", "venv", "--without-pip", target])
    pip: list[str | Path] = [base, "-m", "pip", "--python", python, "install"]
    pip.append("--disable-pip-version-check")
    if shutil.which("uv"):
        pip = ["uv", "pip", "install", "--python", python]
    packages = [f"localstack-core[base-runtime]=={LOCALSTACK_VERSION}", "moto-ext[s3]"]
    run([*pip, "--quiet", "--constraint", HERE / "constraints.txt", *packages, "service_identity"])
    stamp.write_text(wanted)
    return python


def _python_of_localstack() -> str:
    code = "import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))"
    for name in LOCALSTACK_PYTHONS:
        found = shutil.which(name)
        if found and not subprocess.run([found, "-c", code], check=False).returncode:
            return found
    raise NotHere(f"LocalStack {LOCALSTACK_VERSION} needs Python 3.11 or 3.12. None was found")


def _launch_localstack(python: Path, port: int, folder: Path) -> Launch:
    environment = {
        "FILESYSTEM_ROOT": str(folder / "data"),
        "SERVICES": "s3",
        # The default server binds all addresses, regardless of GATEWAY_LISTEN.
        "GATEWAY_SERVER": "hypercorn",
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "OVERRIDE_IN_DOCKER": "0",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "DISABLE_EVENTS": "1",
        "DNS_ADDRESS": "0",
        "EAGER_SERVICE_LOADING": "1",
    }
    return Launch([str(python), "-m", "localstack.runtime.main"], environment)


def _localstack_is_healthy(endpoint: str) -> bool:
    found = answers(f"{endpoint}/_localstack/health")
    if found is None or found[0] != 200:
        return False
    services = json.loads(found[1]).get("services", {})
    return services.get("s3") in {"available", "running"}


# versitygw: one static binary, built once


def _install_versitygw(install: bool) -> Path:
    on_path = shutil.which("versitygw")
    if on_path:
        return Path(on_path)
    folder = cache_directory() / f"versitygw-{VERSITYGW_VERSION}"
    if (folder / "versitygw").is_file():
        return folder / "versitygw"
    if not install:
        raise NotHere("it is not installed: localstack/install versitygw builds it, once")
    if shutil.which("go") is None:
        raise NotHere("versitygw is not on the PATH, and there is no go to build it")
    print(f"versitygw: building {VERSITYGW_VERSION} (some minutes, once)", file=sys.stderr)
    building = folder.with_name(f"{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    module = f"{VERSITYGW_MODULE}@v{VERSITYGW_VERSION}"
    run(["go", "install", "-ldflags", "-s -w", module], GOBIN=str(building))
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)
    return folder / "versitygw"


def _launch_versitygw(binary: Path, port: int, folder: Path) -> Launch:
    data, versions = folder / "data", folder / "versions"
    command = [str(binary), "--port", f"127.0.0.1:{port}", "--keep-alive", "--quiet"]
    command += ["posix", "--versioning-dir", str(versions)]
    for path in (data / BUCKET, versions):
        path.mkdir(parents=True, exist_ok=True)
    if not _has_extended_attributes(data):
        (folder / "sidecar").mkdir(exist_ok=True)
        command += ["--sidecar", str(folder / "sidecar")]
    environment = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    return Launch([*command, str(data)], environment)


def _has_extended_attributes(folder: Path) -> bool:
    with suppress(OSError, AttributeError):  # Not on every system.
        os.setxattr(folder, "user.tieredstore", b"1")
        os.removexattr(folder, "user.tieredstore")
        return True
    return False


def _versitygw_is_healthy(endpoint: str) -> bool:
    found = answers(endpoint)
    return found is not None and b"<Error>" in found[1]


RECIPES = {
    "moto": Recipe(_find_moto, _launch_moto, _moto_is_healthy, make_bucket),
    "localstack": Recipe(
        _install_localstack, _launch_localstack, _localstack_is_healthy, make_bucket
    ),
    "versitygw": Recipe(_install_versitygw, _launch_versitygw, _versitygw_is_healthy, _has_bucket),
}
