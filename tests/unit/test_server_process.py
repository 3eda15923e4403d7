"""What a server process does with freed memory, seen in one of its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from tieredstore.server_process import SWITCH_INTERVAL_S

BLOCK_BYTES = 8 << 20
PAGES = BLOCK_BYTES // 4096
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


def run(**variables: str) -> tuple[float, int]:
    """The switch interval, and how many new pages the same blocks took the second time."""
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    interval, pages = found.stdout.split()
    return float(interval), int(pages)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's mallopt")
def test_freed_memory_is_used_again_unless_the_environment_says_otherwise() -> None:
    interval, pages = run()
    assert interval == SWITCH_INTERVAL_S
    assert pages < PAGES
    _, pages = run(MALLOC_TRIM_THRESHOLD_="131072")
    assert pages > PAGES
