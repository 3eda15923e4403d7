"""What is asked for when messages are printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tieredstore.cli.messages.choice import MessageChoice
    from tieredstore.scan.plan import ScanBounds
    from tieredstore.scan.rows import BodyForm


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """Which messages, and how their rows are made. topics: names and shell patterns. queue_id: None
    for all queues. names: the fields that rows have to have."""

    topics: Sequence[str]
    queue_id: int | None
    bounds: ScanBounds
    choice: MessageChoice
    body: BodyForm
    names: tuple[str, ...]
