"""A disk that loses unsynced data. After a crash, such data may exist, be missing, or be torn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from tieredstore.disk.file_operations import FileOperations
from tieredstore.testing.faults import SimulatedCrash

MOST_PENDING = 7


class File:
    def __init__(self, content: bytes = b"", synced: bytes = b"") -> None:
        self.content = content
        self.synced = synced


class SimulatedFiles(FileOperations):
    """File operations on a simulated disk. The process stops before step number `crash_at`, from 1.
    A call that writes bytes has three steps, every other call one."""

    def __init__(self, names: dict[Path, File] | None = None, crash_at: int = 0) -> None:
        self.names = dict(names or {})
        self.synced_names = dict(self.names)
        # changes of names since the directory was synced: each sets or drops some at once
        self.pending: list[dict[Path, File | None]] = []
        self.crash_at = crash_at
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.crash_at:
            raise SimulatedCrash

    def change(self, changes: dict[Path, File | None]) -> None:
        for name, file in changes.items():
            if file is None:
                self.names.pop(name, None)
            else:
                self.names[name] = file
        self.pending.append(changes)

    def fill(self, file: File, data: bytes) -> None:
        self.step()
        file.content += data[: len(data) // 2]
        self.step()
        file.content += data[len(data) // 2 :]

    def make_or_empty(self, path: Path) -> File:
        file = self.names.get(path)
        if file is None:
            file = File()
            self.change({path: file})
        file.content = b""
        return file

    # The operations

    def size(self, path: Path) -> int | None:
        return len(self.names[path].content) if path in self.names else None

    def read(self, path: Path) -> bytes:
        return self.names[path].content

    def write_synced(self, path: Path, data: bytes, mode: int = 0o644) -> None:
        self.step()
        file = self.make_or_empty(path)
        self.fill(file, data)
        self.step()
        file.synced = file.content

    def open_append(self, path: Path, *, empty: bool) -> SimulatedAppender:
        self.step()
        if empty or path not in self.names:
            self.make_or_empty(path)
        return SimulatedAppender(self, self.names[path])

    def rename(self, path: Path, new_path: Path) -> None:
        self.step()
        self.change({new_path: self.names[path], path: None})

    def link(self, path: Path, new_path: Path) -> bool:
        self.step()
        assert new_path not in self.names
        self.change({new_path: self.names[path]})
        return True

    def unlink(self, path: Path) -> None:
        self.step()
        if path in self.names:
            self.change({path: None})

    def make_directory(self, path: Path, mode: int | None = None) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        self.step()
        self.synced_names = dict(self.names)
        self.pending.clear()

    # After a crash

    def after_kill(self) -> SimulatedFiles:
        """Return the disk after a kill of the process, with all written data."""
        return SimulatedFiles(
            {name: File(file.content, file.content) for name, file in self.names.items()}
        )

    def after_power_loss(self) -> Iterator[SimulatedFiles]:
        """Return all possible states of the disk after a power loss. Unsynced names may exist or
        not. Unsynced bytes may be missing, half written, fully written, or zeros."""
        assert len(self.pending) <= MOST_PENDING
        for chosen in itertools.product((False, True), repeat=len(self.pending)):
            names = dict(self.synced_names)
            for changes in itertools.compress(self.pending, chosen):
                for name, file in changes.items():
                    if file is None:
                        names.pop(name, None)
                    else:
                        names[name] = file
            if all(file.content == file.synced for file in names.values()):
                yield SimulatedFiles(names)
                continue
            for variant in ("none", "half", "all", "zeros"):
                yield SimulatedFiles(
                    {name: File(content(file, variant)) for name, file in names.items()}
                )


def content(file: File, variant: str) -> bytes:
    if variant == "none" or file.content == file.synced:
        return file.synced
    # Appending never loses bytes that are already synced.
    kept = file.synced if file.content.startswith(file.synced) else b""
    rest = file.content[len(kept) :]
    if variant == "half":
        return kept + rest[: len(rest) // 2]
    return kept + (rest if variant == "all" else bytes(len(rest)))


class SimulatedAppender:
    def __init__(self, files: SimulatedFiles, file: File) -> None:
        self.files = files
        self.file = file

    def write(self, data: bytes) -> None:
        self.files.fill(self.file, data)

    def sync(self) -> None:
        self.files.step()
        self.file.synced = self.file.content

    def close(self) -> None:
        pass
