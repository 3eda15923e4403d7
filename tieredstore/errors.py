"""The errors raised on purpose: one root, and a kind for each thing that a caller can do."""

from __future__ import annotations


class TieredStoreError(Exception):
    """Root of all errors raised on purpose.

    The message names the file or object, the offset, what was expected and what was found; the
    attributes carry the same facts for programs.
    """

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
    """A backend or a file could not be reached now: retry later."""


class Exhausted(Unavailable):
    """The machine has no space, descriptors or memory left now: what was asked is not done, nothing
    is damaged, and it works again by itself once there is some."""


class Fenced(TieredStoreError):
    """Another writer owns this tier or segment: stop writing."""


class Invalid(TieredStoreError):
    """The call, the argument or the configuration is wrong: fix it."""


class Unnamed(Invalid):
    """A name is missing, of a cluster or a broker, that the call or its configuration has to say:
    name it."""


class Corrupt(TieredStoreError):
    """Stored bytes are not what their format says: repair the data."""


class Busy(TieredStoreError):
    """A limit is reached: wait or shed load."""


def make_missing_error(what: str, error: ImportError, extra: str) -> Invalid:
    """Make the error of a library that is not there. what: needs it; extra: of this project, which
    brings it."""
    module = (error.name or "a library").partition(".")[0]
    is_absent = isinstance(error, ModuleNotFoundError)
    why = "is not installed" if is_absent else f"cannot be loaded ({error})"
    return Invalid(f"{what} needs {module}, which {why}: pip install 'tieredstore[{extra}]'")
