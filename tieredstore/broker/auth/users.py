"""`UserManager`: who may use the broker, in `config/authUsers.json`, which only its owner reads."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import msgspec

from tieredstore.broker.state.config_manager import ConfigManager, DataVersion
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import Invalid


class UserType(enum.Enum):
    """What a user may do without a policy: a super user everything, others nothing."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(enum.Enum):
    """Whether a user may do anything."""

    ENABLE = "enable"
    DISABLE = "disable"


class User(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A user. password: the secret key of its signatures, never shown."""

    username: str
    password: str
    user_type: UserType = UserType.NORMAL
    user_status: UserStatus = UserStatus.ENABLE

    def __repr__(self) -> str:
        return f"User({self.username!r}, {self.user_type.value}, {self.user_status.value})"


class UserChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What of a user is to be set (Java's UserInfo); None and blank leave it as it is."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"UserChange({self.username!r})"


_Kind = TypeVar("_Kind", bound=enum.Enum)


class _Table(msgspec.Struct, kw_only=True, rename="camel"):
    users: dict[str, User]
    data_version: DataVersion | None = None


class UserManager(ConfigManager):
    """The table of users."""

    file_mode = 0o600

    def __init__(self, config_folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config_folder / "authUsers.json", clock)
        self._users: dict[str, User] = {}

    def find_user(self, username: str) -> User | None:
        """Return a user, None without one."""
        return self._users.get(username)

    def list_users(self) -> Mapping[str, User]:
        """Return the table, by name; it is not to be changed."""
        return MappingProxyType(self._users)

    def create_user(self, change: UserChange) -> None:
        """Make a user. Raises Invalid for one that is there, and for a name or password that is
        blank."""
        name, password = (change.username or "").strip(), change.password or ""
        if not name:
            raise Invalid("username can not be blank")
        if not password.strip():
            raise Invalid("password can not be blank")
        if name in self._users:
            raise Invalid("The user is existed")
        self._set(
            User(
                username=name,
                password=password,
                user_type=_parse_type(change.user_type) or UserType.NORMAL,
                user_status=_parse_status(change.user_status) or UserStatus.ENABLE,
            )
        )

    def update_user(self, change: UserChange) -> None:
        """Change a user. Raises Invalid for one that is not there."""
        old = self._users.get(change.username or "")
        if old is None:
            raise Invalid("The user is not exist")
        password = change.password or ""
        self._set(
            User(
                username=old.username,
                password=password if password.strip() else old.password,
                user_type=_parse_type(change.user_type) or old.user_type,
                user_status=_parse_status(change.user_status) or old.user_status,
            )
        )

    def delete_user(self, username: str) -> bool:
        """Delete a user; tells whether it was there."""
        if self._users.pop(username, None) is None:
            return False
        self.mark_changed()
        return True

    def encode(self) -> bytes:
        table = _Table(users=self._users, data_version=self.data_version)
        return msgspec.json.format(msgspec.json.encode(table), indent=1)

    def decode(self, data: bytes) -> None:
        table = msgspec.json.decode(data, type=_Table)
        self._users = dict(table.users)
        self.data_version = table.data_version or DataVersion()

    def _set(self, user: User) -> None:
        self._users[user.username] = user
        self.mark_changed()


def _parse_type(text: str | None) -> UserType | None:
    return None if not text else _parse(UserType, text)


def _parse_status(text: str | None) -> UserStatus | None:
    return None if not text else _parse(UserStatus, text)


def _parse(kinds: type[_Kind], text: str) -> _Kind:
    for kind in kinds:
        if kind.value.lower() == text.strip().lower():
            return kind
    expected = ", ".join(str(kind.value) for kind in kinds)
    raise Invalid(f"{kinds.__name__}: expected one of {expected}, found {text[:40]!r}")
