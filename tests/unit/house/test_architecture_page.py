"""The code's folders match the diagram in docs/architecture.md."""

from __future__ import annotations

import re
from pathlib import Path

from tests.kit.paths import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGE = ROOT / "tieredstore"


def rooms_of_the_picture() -> set[str]:
    """Return the folders in the diagram as paths relative to the package."""
    picture = PAGE.split("```\n")[1]
    rooms: set[str] = set()
    layer = ""
    for line in picture.splitlines():
        names = re.findall(r"(?<!\S)([\w/]+)/(?=\s|$)", line)
        if not line.startswith(" "):
            layer = names[0] if names else ""
            rooms |= set(names)
        else:
            rooms |= {f"{layer}/{name}" for name in names}
    return rooms


def rooms_of_the_tree() -> set[str]:
    return {
        str(Path(module).parent)
        for folder in PACKAGE.iterdir()
        if folder.is_dir()
        for module in (path.relative_to(PACKAGE) for path in folder.rglob("*.py"))
    }


def test_every_room_is_in_the_picture() -> None:
    besides = {room for room in rooms_of_the_tree() if room.split("/")[0] == "testing"}
    assert besides - {room.rstrip("/") for room in re.findall(r"`([\w/]+/)`", PAGE)} == set()
    assert rooms_of_the_tree() - besides - rooms_of_the_picture() == set()


def test_every_room_of_the_picture_is_there() -> None:
    assert len(rooms_of_the_picture()) > 30
    assert rooms_of_the_picture() - rooms_of_the_tree() == set()


def test_every_module_of_the_picture_is_there() -> None:
    picture = PAGE.split("```\n")[1]
    assert [name for name in re.findall(r"\w+\.py", picture) if not (PACKAGE / name).exists()] == []
