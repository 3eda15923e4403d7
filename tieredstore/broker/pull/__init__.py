"""Messages on their way out: filters, long polling."""

from tieredstore.broker.pull.filters import MAX_KEPT_CHARACTERS, make_filter
from tieredstore.broker.pull.hold import PullHold
from tieredstore.broker.pull.puller import MessagePuller, PullRequest, waits_for_messages

__all__ = [
    "MAX_KEPT_CHARACTERS",
    "MessagePuller",
    "PullHold",
    "PullRequest",
    "make_filter",
    "waits_for_messages",
]
