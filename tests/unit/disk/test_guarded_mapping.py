"""Tests of truncating mapped files. They run in separate processes, because a fault would kill the
process."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no guard elsewhere")

PREPARED = """
import gc, mmap, os, sys, zlib
import numpy as np
from tieredstore.disk import guarded_mapping
from tieredstore.disk.guarded_mapping import guard

SIZE = 16 * mmap.PAGESIZE
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(fd, b"x" * SIZE)
told = []

def fault():
    told.append(1)

def make(**more):
    mapping = mmap.mmap(fd, SIZE, **more)
    assert guard(mapping, fault)
    return mapping
"""


def run(path: Path, code: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PREPARED + textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert not done.stderr, done.stderr
    return done.returncode


def test_l09_an_access_behind_the_end_is_told_and_goes_on(tmp_path: Path) -> None:
    code = """
        mapping = make()
        view = memoryview(mapping)
        os.ftruncate(fd, 2 * mmap.PAGESIZE)
        assert bytes(view[:9]) == b"x" * 9
        assert not told
        view[5 * mmap.PAGESIZE : 5 * mmap.PAGESIZE + 3] = b"abc"
        assert told == [1]
        assert bytes(view[5 * mmap.PAGESIZE :][:4]) == b"abc\\0"
        assert bytes(view[9 * mmap.PAGESIZE :][:4]) == bytes(4)
        assert told == [1]  # one fault gives zeros up to the end
        assert bytes(view[3 * mmap.PAGESIZE :][:4]) == bytes(4)
        assert told == [1, 1]
        assert bytes(view[2 * mmap.PAGESIZE - 3 : 2 * mmap.PAGESIZE]) == b"xxx"
        assert os.fstat(fd).st_size == 2 * mmap.PAGESIZE
    """
    assert run(tmp_path / "file", code) == 0


def test_mappings_for_reading_and_code_without_the_interpreters_lock_are_guarded_too(
    tmp_path: Path,
) -> None:
    code = """
        mapping = make(access=mmap.ACCESS_READ)
        os.ftruncate(fd, 0)
        assert zlib.crc32(mapping) == zlib.crc32(bytes(SIZE))
        assert told == [1]
        assert not np.frombuffer(mapping, np.uint8).any()
    """
    assert run(tmp_path / "file", code) == 0


def test_a_guard_ends_with_its_mapping_and_others_die_as_ever(tmp_path: Path) -> None:
    code = """
        mapping = make()
        assert len(guarded_mapping._ranges) == 1
        del mapping
        gc.collect()
        assert not guarded_mapping._ranges
        mapping = make()
        other = mmap.mmap(fd, SIZE)
        os.ftruncate(fd, 0)
        other[0]
    """
    assert run(tmp_path / "file", code) == -signal.SIGBUS
