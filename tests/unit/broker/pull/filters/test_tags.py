"""Tag filters compare hashes first and then the tags themselves. The tests use subscription
expressions that consumers send."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.broker.clients.session import Subscription
from tieredstore.broker.pull import make_filter
from tieredstore.broker.refused import Reason, Refused
from tieredstore.message.hashes import java_string_hash


def test_a_filter_finds_its_tags_and_not_others_of_the_same_hash(tmp_path: Path) -> None:
    assert java_string_hash("Aa") == java_string_hash("BB")
    wanted = make_filter(Subscription.parse("T", "Aa || C"))
    with running(small_config(tmp_path)) as store:
        put_all(store, [plain(tags=tag) for tag in ("Aa", "BB", "C", "D", "Aa")])
        result = store.get_message("g", "T", 0, 0, 32, wanted)
    assert [message.tags for message in result.messages] == ["Aa", "C", "Aa"]
    assert result.next_begin_offset == 5


@pytest.mark.parametrize("expression", ["*", "", None, "||", "A || *"])
def test_all_messages_need_no_filter(expression: str | None) -> None:
    assert make_filter(Subscription.parse("T", expression)) is None


def test_tags_are_parted_by_two_bars() -> None:
    subscription = Subscription.parse("T", " A||B || ||C ")
    assert subscription.tags == {"A", "B", "C"}


@pytest.mark.parametrize(("kind", "expression"), [("SQL92", "a ="), ("XPATH", "//a")])
def test_a_bad_expression_is_refused(kind: str, expression: str) -> None:
    with pytest.raises(Refused) as refused:
        make_filter(Subscription.parse("T", expression, kind))
    assert refused.value.reason is Reason.SUBSCRIPTION_PARSE_FAILED
