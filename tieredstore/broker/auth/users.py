"""Users and their access lists, in Java's formats."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec

from tieredstore.broker.auth.policies import (
    Acl,
    Policy,
    PolicyEntry,
    Rule,
    Want,
    decide,
    list_entries,
    parse_policies,
    parse_policy_type,
    show_resource,
)
from tieredstore.broker.state.config_manager import ConfigManager, DataVersion
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import Invalid


class UserType(enum.Enum):
    """Kind of user. A super user has all permissions, a normal user only those granted by
    policies."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(enum.Enum):
    """State of a user. A disabled user has no permissions."""

    ENABLE = "enable"
    DISABLE = "disable"


class User(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """User. `password`: secret key for signatures. It is never shown."""

    username: str
    password: str
    user_type: UserType = UserType.NORMAL
    user_status: UserStatus = UserStatus.ENABLE

    def __repr__(self) -> str:
        return f"User({self.username!r}, {self.user_type.value}, {self.user_status.value})"


class UserChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Changes to a user (Java's UserInfo). Fields that are None or blank stay unchanged."""

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
    """Table of users."""

    def __init__(self, config_folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config_folder / "authUsers.json", clock)
        self._users: dict[str, User] = {}

    def find_user(self, username: str) -> User | None:
        """Return a user, or None."""
        return self._users.get(username)

    def list_users(self) -> Mapping[str, User]:
        """Return all users by name. Callers must not change this table."""
        return MappingProxyType(self._users)

    def create_user(self, change: UserChange) -> None:
        """Create a user. Raises Invalid if the user exists or if the name or password is blank."""
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
        """Change a user. Raises Invalid for an unknown user."""
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
        """Delete a user. Returns whether the user existed."""
        if self._users.pop(username, None) is None:
            return False
        self.mark_changed()
        return True

    def list_fields(self) -> dict[str, object]:
        return {"users": iter(self._users.copy().items()), "dataVersion": self.data_version}

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


USER_PREFIX: Final = "User:"


class _AclTable(msgspec.Struct, kw_only=True, rename="camel"):
    acls: dict[str, Acl]
    data_version: DataVersion | None = None


class AclManager(ConfigManager):
    """Policies by subject, `User:name`."""

    def __init__(self, config_folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config_folder / "authAcls.json", clock)
        self._acls: dict[str, Acl] = {}
        self._rules: dict[str, dict[str, list[Rule]]] = {}

    def find_acl(self, subject: str) -> Acl | None:
        """Return the policies of a subject, or None."""
        return self._acls.get(subject)

    def list_acls(self) -> Mapping[str, Acl]:
        """Return all policies by subject. Callers must not change this table."""
        return MappingProxyType(self._acls)

    def allows(self, username: str, want: Want, source_ip: str) -> bool:
        return decide(self._rules.get(USER_PREFIX + username, {}), want, source_ip)

    def update_acl(self, subject: str, policies: list[Policy]) -> None:
        """Add policies to a subject. New entries replace existing entries of the same policy type
        and resource. Raises Invalid."""
        if not subject.startswith(USER_PREFIX):
            raise Invalid(f"subject: expected {USER_PREFIX}name, found {subject[:80]!r}")
        if not policies:
            raise Invalid("The policies is empty.")
        parse_policies(policies)
        old = self._acls.get(subject)
        merged = list_entries(old.policies if old else ())
        for kind, entries in list_entries(policies).items():
            changed = {entry.resource: entry for entry in entries}
            kept = [entry for entry in merged[kind] if entry.resource not in changed]
            merged[kind] = [*kept, *changed.values()]
        self._set(subject, merged)

    def delete_acl(
        self, subject: str, policy_type: str | None = None, resource: str | None = None
    ) -> bool:
        """Delete the entries for a resource from the policies of one type (default: Custom).
        Without `resource`, delete all policies of the subject. Returns whether anything was
        deleted. Raises Invalid for an invalid resource or an unknown type."""
        old = self._acls.get(subject)
        if old is None:
            return False
        left: dict[str, list[PolicyEntry]] = {}
        if resource:
            left, kind = list_entries(old.policies), parse_policy_type(policy_type)
            meant = show_resource(resource)
            left[kind] = [entry for entry in left[kind] if entry.resource != meant]
        self._set(subject, left)
        return True

    def list_fields(self) -> dict[str, object]:
        return {"acls": iter(self._acls.copy().items()), "dataVersion": self.data_version}

    def decode(self, data: bytes) -> None:
        table = msgspec.json.decode(data, type=_AclTable)
        try:
            rules = {subject: parse_policies(acl.policies) for subject, acl in table.acls.items()}
        except Invalid as error:
            raise ValueError(str(error)) from None
        self._acls, self._rules = dict(table.acls), rules
        self.data_version = table.data_version or DataVersion()

    def _set(self, subject: str, entries: Mapping[str, list[PolicyEntry]]) -> None:
        policies = [
            Policy(policy_type=kind, entries=found) for kind, found in entries.items() if found
        ]
        if policies:
            self._rules[subject] = parse_policies(policies)
            self._acls[subject] = Acl(subject=subject, policies=policies)
        else:
            self._rules.pop(subject, None)
            self._acls.pop(subject, None)
        self.mark_changed()
