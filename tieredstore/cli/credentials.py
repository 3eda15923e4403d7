"""Who a verb is at a broker whose access control is on. Secrets are never on a command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
import yaml

from tieredstore.broker.remoting.signing import SessionCredentials
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.errors import Invalid

ACCESS_KEY_VARIABLE: Final = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "ROCKETMQ_SECRET_KEY"  # noqa: S105 - a name


def find_credentials(path: Path | None) -> SessionCredentials | None:
    """Read them from a file like mqadmin's `tools.yml`, without one from ROCKETMQ_ACCESS_KEY and
    ROCKETMQ_SECRET_KEY of the environment; None where neither is. Raises Invalid, Unavailable."""
    if path is not None:
        return _read_file(path)
    access_key = os.environ.get(ACCESS_KEY_VARIABLE)
    secret_key = os.environ.get(SECRET_KEY_VARIABLE)
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        raise Invalid(
            f"environment: expected {ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}, found one"
        )
    return SessionCredentials(access_key=access_key, secret_key=secret_key)


def _read_file(path: Path) -> SessionCredentials:
    with wrap_os_errors("read", path):
        data = path.read_bytes()
    try:
        return msgspec.convert(yaml.safe_load(data), type=SessionCredentials, strict=False)
    except (yaml.YAMLError, msgspec.ValidationError):
        raise Invalid(  # what was found may be a secret
            f"{path}: expected the keys accessKey and secretKey, as in mqadmin's tools.yml",
            path=str(path),
        ) from None
