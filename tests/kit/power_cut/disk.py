"""A disk that can lose power: ext4 in a file on a loop device. A copy of the file lacks the data
that is not written yet."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

IMAGE_BYTES = 500 << 20
_MEMORY = Path("/dev/shm")


class Disk:
    """A mounted file system in `folder`."""

    def __init__(self, image: Path, folder: Path, copies: Path) -> None:
        self.folder = folder
        self._image = image
        self._copies = copies

    @contextmanager
    def cut_power(self, pid: int) -> Iterator[Path]:
        """Copy the disk during the writes of a process, which continues afterwards. Yield the
        folder in which the copy is mounted."""
        copy = self._image.with_suffix(".copy")
        os.kill(pid, signal.SIGSTOP)
        try:
            shutil.copyfile(self._image, copy)
        finally:
            os.kill(pid, signal.SIGCONT)
        try:
            _run("mount", "-o", "loop", str(copy), str(self._copies))
            try:
                yield self._copies
            finally:
                _run("umount", "--lazy", str(self._copies))
        finally:
            copy.unlink()


@contextmanager
def make_disk(folder: Path) -> Iterator[Disk]:
    """Make a disk that is mounted below a folder. Skips the test if this user may not mount."""
    if os.geteuid() or shutil.which("mkfs.ext4") is None:
        pytest.skip("needs root and mkfs.ext4")
    mounted, copies = folder / "disk", folder / "copy"
    mounted.mkdir()
    copies.mkdir()
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else folder) as images:
        image = Path(images) / "disk.image"
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(image))
        mount = ["mount", "-o", "loop", str(image), str(mounted)]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("no loop device can be mounted")
        try:
            yield Disk(image, mounted, copies)
        finally:
            _run("umount", "--lazy", str(mounted))


def _run(*command: str) -> None:
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert not ran.returncode, f"{command}: {ran.stderr}"
