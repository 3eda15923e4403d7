"""NameServer: client of a name server."""

from __future__ import annotations

from collections.abc import Mapping

from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection, connect
from tieredstore.broker.remoting.signing import SessionCredentials
from tieredstore.errors import Unavailable


class NameServer:
    """Connection to a name server, reopened after it is lost."""

    def __init__(self, address: str, credentials: SessionCredentials | None) -> None:
        self.address = address
        self._credentials = credentials
        self._connection: Connection | None = None

    async def request(
        self, code: RequestCode, fields: Mapping[str, str], body: bytes, timeout_ms: int
    ) -> RemotingCommand:
        """Send a request and return the response, even if it is an error. Raises Unavailable
        without a response, and Invalid for an invalid address."""
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = self._connection = await connect(self.address)
        if self._credentials is not None:
            fields = self._credentials.sign(fields, body)
        return await connection.request(code, fields, body, timeout_ms)

    async def call(
        self, code: RequestCode, fields: Mapping[str, str], body: bytes, timeout_ms: int
    ) -> None:
        """Send a request. Raises Unavailable if there is no response or if it is not SUCCESS, and
        Invalid for an invalid address."""
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
    """Split the setting `namesrvAddr` into addresses."""
    return [address.strip() for address in text.split(";") if address.strip()]
