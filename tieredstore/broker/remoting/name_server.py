"""NameServer: requests of this broker to one name server."""

from __future__ import annotations

from collections.abc import Mapping

from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection, connect
from tieredstore.broker.remoting.signing import SessionCredentials
from tieredstore.errors import Unavailable


class NameServer:
    """One name server and the connection to it. A connection that has ended is reopened."""

    def __init__(self, address: str, credentials: SessionCredentials | None) -> None:
        self.address = address
        self._credentials = credentials
        self._connection: Connection | None = None

    async def request(
        self, code: RequestCode, fields: Mapping[str, str], body: bytes, timeout_ms: int
    ) -> RemotingCommand:
        """Send a request and return its answer, even if the answer is an error code. Raises
        Unavailable if there is no answer, and Invalid for an invalid address."""
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = self._connection = await connect(self.address)
        if self._credentials is not None:
            fields = self._credentials.sign(fields, body)
        return await connection.request(code, fields, body, timeout_ms)

    async def call(
        self, code: RequestCode, fields: Mapping[str, str], body: bytes, timeout_ms: int
    ) -> None:
        """Send a request. Raises Unavailable if there is no answer, or if the answer is not
        SUCCESS. Raises Invalid for an invalid address."""
        response = await self.request(code, fields, body, timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            raise Unavailable(
                f"name server {self.address}: request {int(code)}: expected code 0, "
                f"found {response.code} ({response.remark})"
            )

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


def split_addresses(text: str) -> list[str]:
    """Return the addresses in the setting `namesrvAddr`."""
    return [address.strip() for address in text.split(";") if address.strip()]
