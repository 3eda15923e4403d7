"""SessionCredentials: credentials that sign this broker's requests to a server."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

import msgspec

from tieredstore.errors import Invalid

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - a name


class SessionCredentials(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """User name and password, called access key and secret key in remoting."""

    access_key: str
    secret_key: str
    security_token: str | None = None

    def __repr__(self) -> str:
        return f"SessionCredentials({self.access_key!r})"

    @classmethod
    def parse(cls, text: str, origin: str) -> SessionCredentials | None:
        """Parse `{"accessKey":"…","secretKey":"…"}`. Returns None for an empty string. Raises
        Invalid. The message omits the text, which may contain a secret."""
        if not text.strip():
            return None
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, RecursionError):
            raise Invalid(f'{origin}: expected {{"accessKey":"…","secretKey":"…"}}') from None

    def sign(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the fields of a request with its signature: HMAC-SHA1 over the values of all
        fields, in the order of their names, followed by the body."""
        signed = {**fields, ACCESS_KEY: self.access_key}
        if self.security_token is not None:
            signed[SECURITY_TOKEN] = self.security_token
        content = "".join(signed[name] for name in sorted(signed)).encode() + body
        digest = hmac.digest(self.secret_key.encode(), content, hashlib.sha1)
        return signed | {SIGNATURE: base64.b64encode(digest).decode()}
