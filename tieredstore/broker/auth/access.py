"""AccessControl: who a request comes from, and whether it may do what it wants."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tieredstore.broker.auth.acls import AclManager
from tieredstore.broker.auth.migration import migrate_plain_acl
from tieredstore.broker.auth.policies import Want
from tieredstore.broker.auth.users import User, UserChange, UserManager, UserStatus, UserType
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.settings import BrokerSettings
from tieredstore.errors import Invalid

_log = logging.getLogger(__name__)


class NotAuthenticated(Refused):
    """Nobody knows who a request comes from."""

    def __init__(self, message: str) -> None:
        super().__init__(RefusalReason.NO_PERMISSION, message)


class Credentials(NamedTuple):
    """What a request says of its sender. signature: HMAC-SHA1 of the content by the secret key."""

    username: str
    signature: bytes
    content: bytes

    def __repr__(self) -> str:
        return f"Credentials({self.username!r})"


class AccessControl:
    """Checks requests, where the settings ask for it: without a user, and without a rule that
    allows it, a request is refused."""

    def __init__(self, settings: BrokerSettings, users: UserManager, acls: AclManager) -> None:
        self.users = users
        self.acls = acls
        self._settings = settings

    @property
    def is_enabled(self) -> bool:
        """Whether requests are checked."""
        return self._settings.authentication_enabled

    @property
    def cluster(self) -> str:
        """The name of the cluster, which is a resource."""
        return self._settings.broker_cluster_name

    async def load(self) -> None:
        """Make the users that the settings name, when the files are loaded. Raises Invalid for
        settings that do not go together."""
        settings = self._settings
        if settings.authorization_enabled and not settings.authentication_enabled:
            raise Invalid(
                "authorizationEnabled=true: expected authenticationEnabled=true with it: a user "
                "that nobody has checked proves nothing"
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
                "authenticationEnabled=true and there is no user: every request is refused; "
                "initAuthenticationUser names the first one"
            )

    def authenticate(self, credentials: Credentials | None) -> User:
        """Return the user that signed a request. Raises NotAuthenticated, which does not say
        whether the user or the signature is wrong."""
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

    def authorize(self, user: User, wants: Iterable[Want], source_ip: str) -> None:
        """Let a user do what it wants, or raise Refused. Super users may do everything."""
        if not self._settings.authorization_enabled or user.user_type is UserType.SUPER:
            return
        for want in wants:
            if not self.acls.allows(user.username, want, source_ip):
                raise Refused(
                    RefusalReason.NO_PERMISSION,
                    f"User:{user.username} has no permission to access {want} from {source_ip}",
                )

    def _make_first_user(self, text: str) -> None:
        try:
            change = msgspec.json.decode(text, type=UserChange)
        except msgspec.MsgspecError:
            raise Invalid(  # what was found may be a secret
                'initAuthenticationUser: expected {"username":"…","password":"…"}'
            ) from None
        self._make_super_user(change.username, change.password)

    def _make_inner_user(self, text: str) -> None:
        """The user whom brokers of a cluster are to each other."""
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
    """Decode a signature; what is none is an empty one, which fits nothing."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def decode_hex(text: str) -> bytes:
    """Decode a signature; what is none is an empty one, which fits nothing."""
    try:
        return binascii.unhexlify(text)
    except (binascii.Error, ValueError):
        return b""
