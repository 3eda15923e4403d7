"""Which messages a consumer wants: by tag, or by an SQL92 expression over the properties."""

from __future__ import annotations

import functools

from tieredstore.broker.clients import SQL92, TAG, Subscription
from tieredstore.broker.pull.filters.tags import ExactTagFilter
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.contracts.message_store import MessageFilter

__all__ = ["ExactTagFilter", "make_filter"]


def make_filter(subscription: Subscription) -> MessageFilter | None:
    """Make the filter of a subscription; None when it wants all. Raises Refused for an expression
    that is none, and for a kind of expression that is not known."""
    if subscription.expression_type == TAG:
        return _make_tag_filter(subscription.tags) if subscription.tags else None
    raise Refused(
        RefusalReason.SUBSCRIPTION_PARSE_FAILED,
        f"subscription of {subscription.topic}: expected an expression of type {TAG} or {SQL92}, "
        f"found {subscription.expression_type!r}",
        topic=subscription.topic,
    )


@functools.lru_cache(maxsize=1024)
def _make_tag_filter(tags: frozenset[str]) -> ExactTagFilter:
    return ExactTagFilter(tags)
