"""Errors that this project raises: a root class, and one class for each way in which a caller
should react."""

from __future__ import annotations


class TieredStoreError(Exception):
    """Base class of all errors of this project. The message names the file or object, the offset,
    and the expected and found values. Programs can read the file, the offset and so on from the
    attributes."""

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(message)
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.path = path


class Unavailable(TieredStoreError):
    """A backend or a file cannot be reached now. Retry later."""


class Exhausted(Unavailable):
    """The machine has no space, descriptors or memory left. The request was not carried out,
    nothing is damaged, and a retry succeeds once resources are free."""


class Refused(Unavailable):
    """The system refuses access to a file until its permissions, its name or its file system are
    changed. Earlier retries fail. A service may still retry at intervals, so that it continues
    after the change."""


class Expired(Unavailable):
    """Messages expired during a read. Nothing is damaged. Read the remaining messages again."""


class Fenced(TieredStoreError):
    """Another writer owns this tier or segment: stop writing."""


class Invalid(TieredStoreError):
    """The call, the argument or the configuration is wrong: fix it."""


class Unnamed(Invalid):
    """A required name of a cluster or a broker is missing from the call or its configuration."""


class Corrupt(TieredStoreError):
    """Stored bytes do not match their format. Repair the data."""


class Busy(TieredStoreError):
    """A limit is reached. Wait or reduce the load."""


def make_missing_error(what: str, error: ImportError, extra: str) -> Invalid:
    """Return the error of a missing library. `what`: the feature that needs the library. `extra`:
    the extra of this project that installs it."""
    module = (error.name or "a library").partition(".")[0]
    is_absent = isinstance(error, ModuleNotFoundError)
    why = "is not installed" if is_absent else f"cannot be loaded ({error})"
    return Invalid(f"{what} needs {module}, which {why}: pip install 'tieredstore[{extra}]'")
