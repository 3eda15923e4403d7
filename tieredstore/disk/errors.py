"""The errors of ours for what the system says about a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tieredstore.errors import Exhausted, Invalid, TieredStoreError, Unavailable

NOT_ALLOWED: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR}
)
"""What no second try mends: rights, and folders where files should be."""

NO_FOLDER: Final = NOT_ALLOWED | {errno.EEXIST}
"""The same where a folder is made: a file has its name."""

EXHAUSTED: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What passes once somebody gives space, descriptors or memory back."""

RETRY_LATER: Final[frozenset[int]] = frozenset()
"""Nothing is Invalid: for those who say Unavailable whatever the disk answers."""


def translate_os_error(
    error: OSError,
    action: str,
    path: str | Path,
    *,
    invalid: frozenset[int] = NOT_ALLOWED,
    offset: int | None = None,
    is_sync: bool = False,
) -> TieredStoreError:
    """Make Invalid of the error numbers in `invalid`, Exhausted of those in EXHAUSTED, Unavailable
    of all others.

    action: what failed, as in "cannot <action>". offset: bytes in the file, where there is one.
    is_sync: a sync failed, whose error is never Exhausted: what it could not write may be dropped,
    and a later success would mean nothing.
    """
    reason = os.strerror(error.errno) if error.errno else error.strerror or error
    kind: type[TieredStoreError] = Invalid if error.errno in invalid else Unavailable
    if error.errno in EXHAUSTED and not is_sync:
        kind = Exhausted
    return kind(f"{path}: cannot {action}: {reason}", path=str(path), offset=offset)


@contextmanager
def wrap_os_errors(
    action: str, path: str | Path, *, invalid: frozenset[int] = NOT_ALLOWED
) -> Iterator[None]:
    """Translate what the block raises. For calls that are rare: a block costs a microsecond."""
    try:
        yield
    except OSError as error:
        raise translate_os_error(error, action, path, invalid=invalid) from error
