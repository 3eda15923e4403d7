"""Which messages a consumer wants: by tag, or by an SQL92 expression over the properties."""

from __future__ import annotations

import functools
from typing import Final

from tieredstore.broker.clients import SQL92, TAG, Subscription
from tieredstore.broker.pull.filters.tags import ExactTagFilter
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.contracts.message_store import MessageFilter
from tieredstore.errors import Invalid
from tieredstore.message.filters.sql import SqlFilter

__all__ = ["MAX_KEPT_CHARACTERS", "ExactTagFilter", "SqlFilter", "make_filter"]

MAX_KEPT_CHARACTERS: Final = 4096
"""Longer expressions are parsed anew each time: a thousand are kept, whoever sent them."""


def make_filter(subscription: Subscription) -> MessageFilter | None:
    """Make the filter of a subscription; None when it wants all. Raises Refused for an expression
    that is none, and for a kind of expression that is not known."""
    if subscription.expression_type == TAG:
        if not subscription.tags:
            return None
        is_kept = len(subscription.expression) <= MAX_KEPT_CHARACTERS
        return (_make_tag_filter if is_kept else ExactTagFilter)(subscription.tags)
    if subscription.expression_type == SQL92:
        try:
            return _make_sql_filter(subscription.expression)
        except Invalid as error:
            problem = str(error)
    else:
        problem = (
            f"expected an expression of type {TAG} or {SQL92}, found "
            f"{subscription.expression_type[:32]!r}"
        )
    raise Refused(
        RefusalReason.SUBSCRIPTION_PARSE_FAILED,
        f"subscription of {subscription.topic}: {problem}",
        topic=subscription.topic,
    )


@functools.lru_cache(maxsize=1024)
def _make_tag_filter(tags: frozenset[str]) -> ExactTagFilter:
    return ExactTagFilter(tags)


@functools.lru_cache(maxsize=1024)
def _make_sql_filter(expression: str) -> SqlFilter:
    return SqlFilter(expression)
