"""Signatures of clients' requests, computed without the broker's code."""

from __future__ import annotations

import base64
import hmac
from typing import Any

from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.command import RemotingCommand


def sign_fields(fields: dict[str, Any], body: bytes, user: str, password: str) -> dict[str, str]:
    """Add the fields AccessKey and Signature, like the hook of Java's clients."""
    signed = {name: str(value) for name, value in fields.items()} | {"AccessKey": user}
    content = "".join(signed[name] for name in sorted(signed)).encode() + body
    mac = hmac.new(password.encode(), content, "sha1").digest()
    return {**signed, "Signature": base64.b64encode(mac).decode()}


async def request_as(
    client: RemotingClient,
    user: str,
    password: str,
    code: int,
    fields: dict[str, Any] | None = None,
    body: bytes = b"",
) -> RemotingCommand:
    """Send a request that is signed by a user."""
    return await client.request(code, sign_fields(fields or {}, body, user, password), body)


def sign_call(user: str, password: str, date: str = "20260101T000000Z") -> dict[str, str]:
    """Return the metadata by which gRPC clients sign a call."""
    mac = hmac.new(password.encode(), date.encode(), "sha1").hexdigest()
    return {
        "x-mq-date-time": date,
        "authorization": f"MQv2-HMAC-SHA1 Credential={user}/x/RocketMQ, "
        f"SignedHeaders=x-mq-date-time, Signature={mac.upper()}",
    }
