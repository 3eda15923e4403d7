"""Errors of fsspec filesystems as ours, without the secrets of their options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from tieredstore.errors import Invalid, TieredStoreError, Unavailable

_SECRET_NAME = re.compile(
    r"key|secret|token|passw|passphrase|credential|connection_string|sas|auth|signature",
    re.IGNORECASE,
)
_SHORTEST_SECRET = 4
_HIDDEN = "***"

ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""What filesystems raise for an object that is not there; two of them where they have folders."""

_USELESS_TO_RETRY = (
    PermissionError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ImportError,
    ValueError,
    TypeError,
)
_USELESS_NAMES = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "ProfileNotFound"}
)
"""Errors of the libraries below that mean a wrong set-up; they are not imported for that."""


def is_secret_name(name: str) -> bool:
    """Tell whether an option of that name may hold a secret."""
    return bool(_SECRET_NAME.search(name))


def find_secrets(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Collect the values of storage options that no message may show, the longest first."""
    found: set[str] = set()

    def look(value: object, is_secret: bool) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                look(inner, is_secret or is_secret_name(str(name)))
        elif isinstance(value, (list, tuple)):
            for inner in value:
                look(inner, is_secret)
        elif is_secret and isinstance(value, str) and len(value) >= _SHORTEST_SECRET:
            found.update((value, quote(value), quote(value, safe="")))

    look(options, is_secret=False)
    return tuple(sorted(found, key=len, reverse=True))


class ErrorMapper:
    """Turns whatever a filesystem raises into Invalid or Unavailable that names the object."""

    def __init__(self, url: str, secrets: tuple[str, ...] = ()) -> None:
        self._url = url
        self._secrets = secrets

    def redact(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text

    def translate(self, error: Exception, operation: str, key: str) -> TieredStoreError:
        """Make Invalid of an error where trying again is of no use, else Unavailable: the outcome
        is not known."""
        name = type(error).__name__
        text = self.redact(" ".join(str(error).split()))
        useless = isinstance(error, _USELESS_TO_RETRY) or name in _USELESS_NAMES
        kind = Invalid if useless else Unavailable
        return kind(f"{self._url}/{key}: {operation}: {name}: {text}", path=key)

    @contextmanager
    def translate_errors(
        self, operation: str, key: str, answers: tuple[type[Exception], ...] = ()
    ) -> Iterator[None]:
        """Translate the errors of the block. answers: errors that are an answer there and no
        failure, such as ABSENT of a read; these pass."""
        try:
            yield
        except TieredStoreError:
            raise
        except Exception as error:
            if isinstance(error, answers):
                raise
            # no `from`: the original's text and arguments may hold what was hidden here
            raise self.translate(error, operation, key) from None
