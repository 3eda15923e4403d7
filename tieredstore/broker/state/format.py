"""The format version of what a broker keeps in `config/`: a file that Java's brokers ignore."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Corrupt, Invalid

VERSION: Final = 1
FILE_NAME: Final = "tieredstoreFormat.json"


class _Format(msgspec.Struct):
    version: int


def check_format(folder: Path) -> None:
    """Note the version in a folder that has none. Blocks. Raises Invalid for a folder that a newer
    version of this project wrote, Corrupt, Unavailable."""
    path = folder / FILE_NAME
    with wrap_os_errors("read", path):
        data = path.read_bytes() if path.exists() else None
    if data is None:
        with wrap_os_errors("write", path):
            FILES.make_directory(folder)
            FILES.replace_file(path, msgspec.json.encode(_Format(VERSION)))
        return
    try:
        found = msgspec.json.decode(data, type=_Format).version
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{path}: expected a format version: {error}", path=str(path)) from error
    if found > VERSION:
        raise Invalid(
            f"{path}: expected format version {VERSION} or older, found {found}: a newer version "
            "of this project wrote it",
            path=str(path),
        )
