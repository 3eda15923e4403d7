"""Possible states of a disk after a crash at any operation of a recording."""

# ruff: noqa: PTH120
from __future__ import annotations

import enum
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.crash.recorder import (
    SECTOR,
    Link,
    MakeFolder,
    Mark,
    Recording,
    Remove,
    Rename,
    Resize,
    SyncFile,
    SyncFolder,
    Write,
)


class Loss(enum.Enum):
    """Kinds of data loss. Each defines which unsynced operations a crash may lose."""

    NOTHING = "the process was killed: all is there"
    UNSYNCED = "the power went: only synced data is there"
    SOME_WRITES = "any of the writes are there, torn at sectors, all names"
    SOME_NAMES = "all writes are there, names up to some moment"
    ANY = "any of the writes, and names up to some moment"


@dataclass(slots=True)
class _File:
    size: int = 0
    data: bytearray = field(default_factory=bytearray)

    def apply(self, operation: Write | Resize) -> None:
        if isinstance(operation, Write):
            end = operation.position + len(operation.data)
            if len(self.data) < end:
                self.data.extend(bytes(end - len(self.data)))
            self.data[operation.position : end] = operation.data
        elif operation.size > len(self.data):
            self.data.extend(bytes(operation.size - len(self.data)))
        elif not operation.at_least:
            del self.data[operation.size :]


NameOperation = Link | MakeFolder | Remove | Rename


@dataclass(slots=True)
class CrashState:
    """Files and folders of one disk. `facts`: what the program recorded before the crash."""

    files: dict[str, bytes]
    folders: list[str]
    facts: list[object]

    def write_to(self, target: Path) -> None:
        """Write the state to an empty folder."""
        for folder in sorted(self.folders):
            (target / folder).mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            path = target / name
            if path.parent.is_dir():
                path.write_bytes(data)


def crash_state(recording: Recording, cut: int, loss: Loss, seed: int = 0) -> CrashState:
    """Return a state of the disk after a crash just before operation number `cut`."""
    chance = random.Random(f"{seed}/{cut}/{loss.name}")
    happened = recording.operations[:cut]
    writes: dict[int, list[tuple[int, Write | Resize]]] = {}
    names: list[tuple[int, NameOperation]] = []
    synced_files: dict[int, int] = {}
    synced_folders: dict[str, int] = {}
    for number, operation in enumerate(happened):
        match operation:
            case Write() | Resize():
                writes.setdefault(operation.file, []).append((number, operation))
            case SyncFile():
                synced_files[operation.file] = number
            case SyncFolder():
                synced_folders[operation.folder] = number
            case Link() | MakeFolder() | Remove() | Rename():
                names.append((number, operation))
            case Mark():
                pass
    files = {number: _File(data=bytearray(data)) for number, data in recording.first_files.items()}
    for number, operations in writes.items():
        file = files.setdefault(number, _File())
        for kept in _kept_writes(operations, synced_files.get(number, -1), loss, chance):
            file.apply(kept)
    table = dict(recording.first_names)
    folders = set(recording.first_folders)
    for change in _kept_names(names, synced_folders, loss, chance):
        _apply_name(change, table, folders)
    found = {path: bytes(files.setdefault(number, _File()).data) for path, number in table.items()}
    facts = [operation.fact for operation in happened if isinstance(operation, Mark)]
    return CrashState(found, sorted(folders), facts)


def _kept_writes(
    operations: list[tuple[int, Write | Resize]], synced: int, loss: Loss, chance: random.Random
) -> Iterator[Write | Resize]:
    for number, operation in operations:
        if number <= synced or loss in (Loss.NOTHING, Loss.SOME_NAMES):
            yield operation
        elif loss is Loss.UNSYNCED:
            continue
        elif isinstance(operation, Resize):
            if chance.random() < 0.7:
                yield operation
        else:
            yield from _torn(operation, chance)


def _torn(write: Write, chance: random.Random) -> Iterator[Write]:
    """Return possible results of an interrupted write: all, none or some of its sectors."""
    fate = chance.random()
    if fate < 0.4:
        yield write
    elif fate < 0.7:
        position, end = write.position, write.position + len(write.data)
        while position < end:
            stop = min(position - position % SECTOR + SECTOR, end)
            if chance.random() < 0.5:
                piece = write.data[position - write.position : stop - write.position]
                yield Write(write.file, position, piece)
            position = stop


def _kept_names(
    names: list[tuple[int, NameOperation]],
    synced: dict[str, int],
    loss: Loss,
    chance: random.Random,
) -> Iterator[NameOperation]:
    last = names[-1][0] if names else -1
    first_lost = {
        Loss.NOTHING: last + 1,
        Loss.SOME_WRITES: last + 1,
        Loss.UNSYNCED: -1,
    }.get(loss)
    if first_lost is None:
        first_lost = chance.randint(0, last + 1)
    for number, operation in names:
        path = operation.new_path if isinstance(operation, Rename) else operation.path
        folder = os.path.dirname(path) or "."
        if number <= synced.get(folder, -1) or number < first_lost:
            yield operation


def _apply_name(change: NameOperation, table: dict[str, int], folders: set[str]) -> None:
    """Apply the creation, renaming or removal of a name. Does nothing if the previous changes of
    that name were lost."""
    parent = os.path.dirname(change.path)
    match change:
        case Link():
            if not parent or parent in folders:
                table[change.path] = change.file
        case MakeFolder():
            if not parent or parent in folders:
                folders.add(change.path)
        case Remove():
            table.pop(change.path, None)
            below = change.path + os.sep
            if not any(name.startswith(below) for name in (*table, *folders)):
                folders.discard(change.path)
        case Rename():
            number = table.pop(change.path, None)
            if number is not None:
                table[change.new_path] = number
            elif change.path in folders:
                below = change.path + os.sep
                for name in [name for name in table if name.startswith(below)]:
                    table[change.new_path + name[len(change.path) :]] = table.pop(name)
                for name in [n for n in folders if n == change.path or n.startswith(below)]:
                    folders.discard(name)
                    folders.add(change.new_path + name[len(change.path) :])


def cuts(recording: Recording) -> list[int]:
    """Return the numbers of all operations before which the machine may stop, and the number after
    the last one."""
    return list(range(len(recording.operations) + 1))
