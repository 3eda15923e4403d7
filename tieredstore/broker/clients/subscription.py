"""Subscription: which messages of a topic a consumer wants."""

from __future__ import annotations

from typing import Final, Self

import msgspec

from tieredstore.message.tag_filter import SUBSCRIBE_ALL, parse_tags

TAG: Final = "TAG"
SQL92: Final = "SQL92"


class Subscription(msgspec.Struct, frozen=True):
    """What a consumer subscribed to (Java's SubscriptionData).

    expression: tags parted by `||`, or `*`, or an SQL92 expression, as expression_type says;
    version: when the consumer made it, epoch ms; tags: those of the expression, empty for all.
    """

    topic: str
    expression: str = SUBSCRIBE_ALL
    expression_type: str = TAG
    version: int = 0
    tags: frozenset[str] = frozenset()

    @classmethod
    def parse(
        cls,
        topic: str,
        expression: str | None,
        expression_type: str | None = None,
        version: int = 0,
    ) -> Self:
        """Make the subscription of an expression; None and blank are all messages. The text of an
        SQL92 expression is not looked at (`pull.filters` does)."""
        expression = expression or SUBSCRIBE_ALL
        kind = expression_type or TAG
        if kind != TAG:
            return cls(topic, expression, kind, version)
        tags = parse_tags(expression)
        if not tags:
            return cls(topic, SUBSCRIBE_ALL, TAG, version)
        return cls(topic, expression, TAG, version, tags)
