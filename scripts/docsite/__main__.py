"""Build the documentation site, and print the path of its first page.

Usage: python -m scripts.docsite [FOLDER]

FOLDER is `build/docs` by default. The site is in FOLDER/site, and any web server can serve it. A
warning of the generator, such as a link to a missing page, ends the build with exit code 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.docsite.staging import ROOT, stage

CONFIG = Path(__file__).with_name("zensical.toml")


def build(folder: Path) -> Path:
    """Build the site into a folder of its own. Return the path of its first page. Raises
    CalledProcessError if the generator prints a warning."""
    shutil.rmtree(folder, ignore_errors=True)
    stage(folder / "pages")
    shutil.copy(CONFIG, folder / CONFIG.name)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(
        [*command, "--config-file", str(folder / CONFIG.name)],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"},
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
        done.check_returncode()
    return folder / "site" / "index.html"


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    try:
        page = build(folder.absolute())
    except subprocess.CalledProcessError:
        return 1
    print(f"docs: built {page}. Serve it with `python3 -m http.server --directory {page.parent}`.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
