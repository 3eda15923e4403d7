"""Reading the queues that the broker keeps for itself: what waits for a time or for an answer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tieredstore.contracts.message_store import GetMessageResult, GetMessageStatus, GetRequest
from tieredstore.errors import Corrupt

if TYPE_CHECKING:
    from tieredstore.contracts.message_store import MessageReader

_log = logging.getLogger(__name__)


async def read_own_queue(store: MessageReader, request: GetRequest) -> GetMessageResult:
    """Get messages of a queue of the broker's own. One that is damaged is told and passed over:
    nobody else could, and those behind it would wait for ever. Raises what the store raises."""
    try:
        return await store.get_async(request)
    except Corrupt as error:
        _log.error("a message is damaged, and is left out: %s", error)
        begin = request.offset
        return GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, begin + 1)
