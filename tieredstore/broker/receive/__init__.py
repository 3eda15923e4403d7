"""Messages taken for a while: invisible time, acknowledgement, attempts, FIFO."""

from tieredstore.broker.receive.batch import DeadLetters
from tieredstore.broker.receive.requests import (
    AUTO_RENEW_MS,
    MAX_INVISIBLE_MS,
    MIN_INVISIBLE_MS,
    AckStatus,
    Received,
    ReceiveRequest,
)
from tieredstore.broker.receive.service import ReceiveService

__all__ = [
    "AUTO_RENEW_MS",
    "MAX_INVISIBLE_MS",
    "MIN_INVISIBLE_MS",
    "AckStatus",
    "DeadLetters",
    "ReceiveRequest",
    "ReceiveService",
    "Received",
]
