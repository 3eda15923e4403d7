"""Staging of the site: collect all pages in one folder, and rewrite their links."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from scripts.docsite import commands, errors, metrics, python_api

ROOT: Final = Path(__file__).resolve().parents[2]
MOVED: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "deploy/README.md": "deploy.md",
    "localstack/README.md": "localstack.md",
}
"""Pages outside of `docs/`, as a map from the path in the repository to the path in the site."""
GENERATED: Final = {
    "reference/commands.md": commands.page,
    "reference/errors.md": errors.page,
    "reference/metrics.md": metrics.page,
    "reference/python.md": python_api.page,
}
"""Pages that exist only in the site."""
LISTS: Final = {
    "adr": ("Decisions", "One page for each large decision, with its reason."),
    "formats": ("Formats", "The bytes of files and objects, one page a format."),
}
"""Folders whose first page is a list of their pages."""
_LINK: Final = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\((?!https?:|mailto:)([^)\s]+)\)")


def stage(folder: Path) -> None:
    """Write all pages and pictures into a new folder."""
    docs = ROOT / "docs"
    places = {path: _place_of(path) for path in docs.rglob("*") if path.is_file()}
    places |= {ROOT / name: place for name, place in MOVED.items()}
    for path, place in places.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(rewrite_links(path.read_text(), path, places))
        else:
            shutil.copy(path, target)
    for name, make in GENERATED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(make())
    for name, (title, text) in LISTS.items():
        rows = "".join(
            f"- [{_title_of(path)}]({path.name})\n" for path in sorted((docs / name).glob("*.md"))
        )
        (folder / name / "index.md").write_text(f"# {title}\n\n{text}\n\n{rows}")


def rewrite_links(text: str, page: Path, places: Mapping[Path, str]) -> str:
    """Return a page whose links lead to pages of the site. A link to another file is replaced by
    the file's name. `places`: path in the site for each path in the repository."""
    here = Path(places[page]).parent

    def replace(match: re.Match[str]) -> str:
        mark, label, link = match.groups()
        name, _, anchor = link.partition("#")
        if not name:
            return match.group()
        path = Path(os.path.normpath(page.parent / name))
        place = places.get(path)
        if place is None and path.parent == ROOT / "docs" and path.name in LISTS:
            place = f"{path.name}/index.md"
        if place is None:
            return f"{label}" if label.startswith("`") else f"{label} (`{path.relative_to(ROOT)}`)"
        return f"{mark}[{label}]({os.path.relpath(place, here)}{anchor and f'#{anchor}'})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else _LINK.sub(replace, part) for part in parts)


def _place_of(path: Path) -> str:
    return str(path.relative_to(ROOT / "docs"))


def _title_of(path: Path) -> str:
    return path.read_text().partition("\n")[0].removeprefix("# ")
