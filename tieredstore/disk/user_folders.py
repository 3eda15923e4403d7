"""Folders of the user who runs this process: the home folder and folders for temporary files. Both
may be missing. The user of a container may have neither a passwd entry nor HOME, and its disk may
be read-only."""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tieredstore.errors import Invalid


def find_home() -> Path | None:
    """Return the home folder from HOME or the passwd entry, or None."""
    given = os.environ.get("HOME")
    if given:
        return Path(given)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def find_user_folder(variable: str, below_home: str) -> Path | None:
    """Return the folder that an environment variable names, else a folder below the home folder, or
    None."""
    given = os.environ.get(variable)
    if given:
        return Path(given)
    home = find_home()
    return None if home is None else home / below_home


def require_user_folder(variable: str, below_home: str, *, or_else: str = "") -> Path:
    """Return the folder that `find_user_folder` finds. Raises Invalid, with the name of the
    variable, if there is none. `or_else`: the user's alternative, for the error message."""
    found = find_user_folder(variable, below_home)
    if found is None:
        raise Invalid(
            f"no home folder: user {os.getuid()} has no entry in passwd, and HOME is not set. Set "
            f"HOME or {variable}" + (f", or {or_else}" if or_else else "")
        )
    return found


def require_temporary_folder() -> str:
    """Return the folder for temporary files. Raises Invalid, with the name of the variable, if none
    is writable."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise Invalid(
            f"no folder for temporary files can be written ({error.strerror}): set TMPDIR to one"
        ) from None


@contextmanager
def make_temporary_folder(prefix: str) -> Iterator[Path]:
    """Create a folder that is removed at the end of the block. Raises Invalid if no folder for
    temporary files is writable."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=require_temporary_folder()) as folder:
        yield Path(folder)
