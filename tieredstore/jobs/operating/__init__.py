"""What an operator does to a tier by hand (`docs/operating.md`): each verb says what it would do,
and does it when it is told to, as the tier's only writer.

Nothing here has a journal: a verb that was cut off is run again, or whoever writes to the tier next
finishes the deletions that it announced.
"""

from tieredstore.jobs.operating.adopt import adopt_tier
from tieredstore.jobs.operating.delete import delete_topic
from tieredstore.jobs.operating.expire import expire_queues
from tieredstore.jobs.operating.health import Health, check_health
from tieredstore.jobs.operating.moving import reset_queues, skip_messages

__all__ = [
    "Health",
    "adopt_tier",
    "check_health",
    "delete_topic",
    "expire_queues",
    "reset_queues",
    "skip_messages",
]
