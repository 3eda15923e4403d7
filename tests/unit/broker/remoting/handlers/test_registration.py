"""The server has a handler for each expected request code."""

from __future__ import annotations

from pathlib import Path

from tests.kit.consuming import ServedBroker, play
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.handlers.base import make_handler_table

SENT_BY_BROKERS = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
}


def test_every_code_that_is_named_is_served_or_sent(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        served = make_handler_table(broker.services).codes
        assert served == {code.value for code in set(RequestCode) - SENT_BY_BROKERS}

    play(tmp_path, scenario)
