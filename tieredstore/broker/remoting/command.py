"""One remoting command, a request or a response, whichever header it has on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from tieredstore.broker.remoting.codes import VERSION, HeaderType
from tieredstore.message.buffers import Buffer

if TYPE_CHECKING:
    Body: TypeAlias = Buffer | Sequence[Buffer]
else:
    Body = Any  # JSON headers are decoded right into commands; the body is set afterwards

RESPONSE_FLAG: Final = 1
ONE_WAY_FLAG: Final = 2


class RemotingCommand(msgspec.Struct, gc=False):
    """A request or a response.

    A handler returns `RemotingCommand(code, ext_fields, body, remark=…)`; opaque, flag and header
    type of the response are set by the connection. body: bytes when it was received; to be sent, a
    buffer or a sequence of them, which are written as they are. Values of ext_fields are strings.
    """

    code: int
    ext_fields: dict[str, str] = msgspec.field(name="extFields", default_factory=dict)
    body: Body = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: str = "PYTHON"
    version: int = VERSION
    header_type: HeaderType = HeaderType.JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_one_way(self) -> bool:
        """Whether the sender wants no response."""
        return bool(self.flag & ONE_WAY_FLAG)

    @property
    def body_bytes(self) -> bytes:
        """The body in one piece."""
        body = self.body
        if isinstance(body, bytes):
            return body
        if isinstance(body, (bytearray, memoryview)):
            return bytes(body)
        return b"".join(body)
