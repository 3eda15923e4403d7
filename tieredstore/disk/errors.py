"""Translation of the system's file errors into errors of `tieredstore.errors`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tieredstore.errors import Exhausted, Invalid, Refused, TieredStoreError, Unavailable

LASTING: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.EILSEQ,
        errno.ELOOP,
        errno.EMLINK,
        errno.EXDEV,
        errno.EFBIG,
        errno.EOVERFLOW,
        errno.ENXIO,
        errno.ENODEV,
        errno.ENOSYS,
        errno.EOPNOTSUPP,
        errno.ENOTSUP,
        errno.EBADF,
    }
)
"""Error numbers of faults that a retry cannot resolve: permissions, names, file types, missing
features of a file system."""

NO_FOLDER: Final = LASTING | {errno.EEXIST}
"""Error numbers that a retry cannot resolve when a folder is created: those in LASTING, and EEXIST
for a file that already has the folder's name."""

EXHAUSTED: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Error numbers of errors that go away once space, descriptors or memory are freed."""

RETRY_LATER: Final[frozenset[int]] = frozenset()
"""Empty set for the parameter `invalid`, so that no error becomes Invalid. Lasting errors become
Refused, a subclass of Unavailable. Services that retry after any error use this, to continue
without a restart once the cause is fixed."""


def is_lasting(error: OSError) -> bool:
    """Return whether the error persists until the file, its permissions or its name are changed.
    Other modules call this instead of comparing error numbers."""
    return error.errno in LASTING


def classify_os_error(
    error: OSError, *, invalid: frozenset[int] = LASTING, is_sync: bool = False
) -> type[TieredStoreError]:
    """Return the error class that `translate_os_error` would use, for callers with their own
    messages."""
    if error.errno in invalid:
        return Invalid
    if is_lasting(error):
        return Refused
    return Exhausted if error.errno in EXHAUSTED and not is_sync else Unavailable


def translate_os_error(
    error: OSError,
    action: str,
    path: str | Path,
    *,
    invalid: frozenset[int] = LASTING,
    offset: int | None = None,
    is_sync: bool = False,
) -> TieredStoreError:
    """Convert an OSError. The result is Invalid for error numbers in `invalid`, Refused for other
    lasting errors, Exhausted for error numbers in EXHAUSTED, and Unavailable for all others.

    `action`: the failed action, as in "cannot <action>".
    `offset`: position in the file in bytes, if known.
    `is_sync`: whether the failed action is a sync. This is never Exhausted, because a retry would
    prove nothing: the system may have dropped the bytes that it could not write.
    """
    reason = os.strerror(error.errno) if error.errno else error.strerror or error
    kind = classify_os_error(error, invalid=invalid, is_sync=is_sync)
    return kind(f"{path}: cannot {action}: {reason}", path=str(path), offset=offset)


@contextmanager
def wrap_os_errors(
    action: str,
    path: str | Path,
    *,
    invalid: frozenset[int] = LASTING,
    offset: int | None = None,
    is_sync: bool = False,
) -> Iterator[None]:
    """Translate every OSError of the block. Each block costs a microsecond, so do not use it for
    frequent calls."""
    try:
        yield
    except OSError as error:
        raise translate_os_error(
            error, action, path, invalid=invalid, offset=offset, is_sync=is_sync
        ) from error
