"""What is raised while a request is handled, as the response that says so: the one place."""

from __future__ import annotations

import logging

from tieredstore.broker.refused import Refused
from tieredstore.broker.remoting.codes import ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.errors import Busy, Exhausted, Invalid, TieredStoreError, Unavailable

_log = logging.getLogger(__name__)


def _code_of(error: TieredStoreError) -> int:
    if isinstance(error, Refused):
        return int(error.reason)
    if isinstance(error, Busy):
        return ResponseCode.SYSTEM_BUSY
    if isinstance(error, Exhausted | Unavailable):
        return ResponseCode.SERVICE_NOT_AVAILABLE
    if isinstance(error, Invalid):
        return ResponseCode.INVALID_PARAMETER
    return ResponseCode.SYSTEM_ERROR  # Fenced, Corrupt: no client can do anything


def respond_to_error(error: Exception, request: RemotingCommand) -> RemotingCommand:
    """Make the response to a request whose handler raised. What nobody foresaw is logged, and its
    text stays here: it may quote what was sent."""
    if isinstance(error, TieredStoreError):
        return RemotingCommand(_code_of(error), remark=str(error))
    _log.error("request %d failed", request.code, exc_info=error)
    return RemotingCommand(
        ResponseCode.SYSTEM_ERROR, remark=f"request {request.code}: {type(error).__name__}"
    )
