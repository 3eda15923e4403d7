"""A start writes marks that show whether a store, its state and its tier belong together. The
process ends at any of these writes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.kit.belonging import SharedTier, Stopped
from tieredstore.disk.file_operations import FILES, FileOperations
from tieredstore.providers.memory.objects import MemoryObjectClient

NAMES = ("tieredstore.tier", "tieredstoreTier.json", ".tier")


class Killed(BaseException):
    """The simulated end of the process."""


class Kill:
    """Ends the process before or after write number `at`. Only writes of marks are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.is_after, self.count = -1, False, 0
        replace, make = FileOperations.replace_file, MemoryObjectClient.put_if_absent
        kill = self

        def replace_file(self: FileOperations, path: Path, *args: object, **keys: object) -> None:
            if path.name in NAMES:
                kill.write(lambda: replace(self, path, *args, **keys))  # type: ignore[arg-type]
            else:
                replace(self, path, *args, **keys)  # type: ignore[arg-type]

        def put_if_absent(self: MemoryObjectClient, key: str, *args: object) -> object:
            if "/.writer/0" in key:
                return kill.write(lambda: make(self, key, *args))  # type: ignore[arg-type]
            return make(self, key, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(type(FILES), "replace_file", replace_file)
        monkeypatch.setattr(MemoryObjectClient, "put_if_absent", put_if_absent)

    def write(self, action: object) -> object:
        self.count += 1
        if self.count - 1 == self.at and not self.is_after:
            raise Killed
        assert callable(action)
        found = action()
        if self.count - 1 == self.at:
            raise Killed
        return found


def open_store(kind: str, shared: SharedTier, folder: Path) -> Stopped:
    if kind == "chunks":
        return shared.open(folder)
    return Stopped(folder, shared.clock)


@pytest.mark.parametrize("kind", ["posix", "chunks"])
@pytest.mark.parametrize("is_after", [False, True])
def test_w35_a_start_that_ends_at_any_write_of_an_identity_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_after: bool
) -> None:
    shared = SharedTier(tmp_path)
    kill = Kill(monkeypatch)
    folder = tmp_path / "broker"
    written = 0
    for number in itertools.count():
        kill.at, kill.is_after, kill.count = number, is_after, 0
        try:
            world = open_store(kind, shared, folder)
        except Killed:
            kill.at = -1
            world = open_store(kind, shared, folder)
            was_killed = True
        else:
            kill.at, was_killed = -1, False
        assert world.put("T", b"%d" % written) == [written]
        world.upload()
        written += 1
        assert [body for _, body in world.read("T")] == [b"%d" % n for n in range(written)]
        world.close()
        if not was_killed:
            break
    assert written > 5
