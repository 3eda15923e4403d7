"""A server process returns freed memory to the system. The test runs it as a separate process."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tieredstore import server_process
from tieredstore.server_process import SWITCH_INTERVAL_S

BLOCK_BYTES = 8 << 20
PAGES = BLOCK_BYTES // 4096
KNOWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
SCRIPT = f"""
import resource, sys
from tieredstore.server_process import tune_server_process
tune_server_process()

def count_new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray({BLOCK_BYTES}) for _ in range(4)]
    for block in blocks:
        block[:] = b"x" * {BLOCK_BYTES}
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

count_new_pages()
print(sys.getswitchinterval(), count_new_pages())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's mallopt")
def test_freed_memory_is_used_again() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in KNOWN}
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    interval, pages = found.stdout.split()
    assert float(interval) == SWITCH_INTERVAL_S
    assert int(pages) < PAGES


@pytest.mark.parametrize("name", ["", *KNOWN])
def test_the_environment_has_the_last_word(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_options: list[int] = []
    library = SimpleNamespace(mallopt=lambda option, _: set_options.append(option))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    for known in KNOWN:
        monkeypatch.delenv(known, raising=False)
    if name:
        monkeypatch.setenv(name, "1")
    server_process.tune_server_process()
    assert len(set_options) == (0 if name else 2)


def test_a_library_without_the_option_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)
    server_process.tune_server_process()
