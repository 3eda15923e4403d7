"""AccessControl: authentication and authorisation of requests."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
from typing import Final, NamedTuple

import msgspec

from tieredstore.broker.auth.migration import migrate_plain_acl
from tieredstore.broker.auth.policies import Want
from tieredstore.broker.auth.users import (
    AclManager,
    User,
    UserChange,
    UserManager,
    UserStatus,
    UserType,
)
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.settings import BrokerSettings
from tieredstore.errors import Invalid

_log = logging.getLogger(__name__)


class NotAuthenticated(Refused):
    """Raised if the sender of a request cannot be identified."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.NO_PERMISSION, message)


class Credentials(NamedTuple):
    """Credentials of a request. `signature`: HMAC-SHA1 of `content` with the user's secret key."""

    username: str
    signature: bytes
    content: bytes

    def __repr__(self) -> str:
        return f"Credentials({self.username!r})"


class Caller(NamedTuple):
    """Sender of a request, used for later permission checks. `access`: None if requests are not
    checked. `user`: the user at the time of the request."""

    access: AccessControl | None
    username: str
    source_ip: str
    user: User | None = None

    @property
    def is_current(self) -> bool:
        """True if the sender's credentials are still valid."""
        return self.access is None or self.access.is_current(self.user)

    def allows(self, want: Want) -> bool:
        """Return whether the sender has a permission under the current users and policies. A sender
        whose password has changed since the request has no permissions."""
        access = self.access
        return access is None or access.allows(self.user, want, self.source_ip)

    def require(self, *wants: Want) -> None:
        """Raise Refused if the sender lacks one of the given permissions."""
        for want in wants:
            if not self.allows(want):
                raise Refused(
                    Reason.NO_PERMISSION,
                    f"User:{self.username} has no permission to access {want} "
                    f"from {self.source_ip}",
                )


ANYBODY: Final = Caller(None, "", "")
"""Sender of every request if requests are not checked."""


class AccessControl:
    """Authenticates and authorises requests, if enabled in the settings. A request is refused if it
    has no user or if no rule allows it."""

    def __init__(self, settings: BrokerSettings, users: UserManager, acls: AclManager) -> None:
        self.users = users
        self.acls = acls
        self._settings = settings

    @property
    def is_enabled(self) -> bool:
        return self._settings.authentication_enabled

    @property
    def cluster(self) -> str:
        """Name of the broker's cluster, a resource that policies can name."""
        return self._settings.broker_cluster_name

    async def load(self) -> None:
        """Create the users named in the settings. Call this after the files of users and rules are
        loaded. Raises Invalid for contradictory settings."""
        settings = self._settings
        if settings.authorization_enabled and not settings.authentication_enabled:
            raise Invalid(
                "authorizationEnabled=true: expected authenticationEnabled=true too, since only "
                "checked users have rights"
            )
        if settings.init_authentication_user:
            self._make_first_user(settings.init_authentication_user)
        self._make_inner_user(settings.inner_client_credentials)
        if settings.migrate_auth_from_v1_enabled:
            await migrate_plain_acl(self.users, self.acls)
        await self.users.persist()
        await self.acls.persist()
        if self.is_enabled and not self.users.list_users():
            _log.warning(
                "authenticationEnabled=true and there is no user, so every request is refused: "
                "set initAuthenticationUser"
            )

    def authenticate(self, credentials: Credentials | None) -> User:
        """Return the user that signed a request. Raises NotAuthenticated. The message is the same
        for an unknown user and a wrong signature."""
        user = None if credentials is None else self.users.find_user(credentials.username)
        # An unknown user takes as long as a known one.
        key = user.password.encode() if user is not None else b"none"
        content = credentials.content if credentials is not None else b""
        expected = hmac.digest(key, content, hashlib.sha1)
        if credentials is None:
            raise NotAuthenticated("the request has no signature")
        if not hmac.compare_digest(expected, credentials.signature) or user is None:
            raise NotAuthenticated("check signature failed.")
        if user.user_status is UserStatus.DISABLE:
            raise NotAuthenticated("the user is disabled.")
        return user

    def is_current(self, signer: User | None) -> bool:
        """Return whether the signature of an earlier request is still valid. It becomes invalid if
        the signer is deleted or disabled, or gets a new password."""
        user = None if signer is None else self.users.find_user(signer.username)
        if user is None or signer is None or user.user_status is UserStatus.DISABLE:
            return False
        return user.password == signer.password

    def allows(self, signer: User | None, want: Want, source_ip: str) -> bool:
        """Return whether the signer of a request has a permission. A super user has every
        permission. A user that was deleted or disabled since the request, or got a new password,
        has none."""
        if signer is None or not self.is_current(signer):
            return False
        username = signer.username
        user = self.users.list_users()[username]
        if not self._settings.authorization_enabled or user.user_type is UserType.SUPER:
            return True
        return self.acls.allows(username, want, source_ip)

    def _make_first_user(self, text: str) -> None:
        try:
            change = msgspec.json.decode(text, type=UserChange)
        except msgspec.MsgspecError:
            raise Invalid(  # the value may be a secret
                'initAuthenticationUser: expected {"username":"…","password":"…"}'
            ) from None
        self._make_super_user(change.username, change.password)

    def _make_inner_user(self, text: str) -> None:
        try:
            found = msgspec.json.decode(text or "{}", type=dict[str, str | None])
        except msgspec.MsgspecError:
            raise Invalid(
                'innerClientAuthenticationCredentials: expected {"accessKey":"…","secretKey":"…"}'
            ) from None
        if found:
            self._make_super_user(found.get("accessKey"), found.get("secretKey"))

    def _make_super_user(self, username: str | None, password: str | None) -> None:
        if self.users.find_user(username or "") is None:
            self.users.create_user(
                UserChange(username=username, password=password, user_type="Super")
            )


def decode_base64(text: str) -> bytes:
    """Decode a base64 signature. Returns an empty signature, which never matches, for invalid
    text."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def decode_hex(text: str) -> bytes:
    """Decode a hexadecimal signature. Returns an empty signature, which never matches, for invalid
    text."""
    try:
        return binascii.unhexlify(text)
    except (binascii.Error, ValueError):
        return b""
