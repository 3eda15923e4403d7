"""What a call brings beside its request, whatever transport carries it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from tieredstore.broker.auth.users import User

CLIENT_ID = "x-mq-client-id"
LANGUAGE = "x-mq-language"


@dataclass(slots=True)
class Call:
    """One call: its metadata (lower-case names), who makes it (`ip:port`), and until when.

    deadline_s: of the loop's clock, None when the client set none. user: who signed it, where calls
    are checked.
    """

    metadata: Mapping[str, str] = field(default_factory=dict)
    peer: str = "127.0.0.1:0"
    deadline_s: float | None = None
    user: User | None = None

    @property
    def client_id(self) -> str:
        """Who the client says it is; empty when it does not."""
        return self.metadata.get(CLIENT_ID, "")

    @property
    def language(self) -> str:
        """The language as the metadata name it: any text, the Node client says HTTP."""
        return self.metadata.get(LANGUAGE, "")

    def remaining_ms(self) -> int | None:
        """Return what is left until the deadline, 0 at least; None without one."""
        if self.deadline_s is None:
            return None
        return max(0, int((self.deadline_s - asyncio.get_running_loop().time()) * 1000))
