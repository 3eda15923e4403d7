"""Queries for messages that a group may pop (codes 200052, 200054, 200055), and POP_ROLLBACK
(200056)."""

from __future__ import annotations

from tieredstore.broker.auth.policies import Action
from tieredstore.broker.clients.assignment import ALL_QUEUES
from tieredstore.broker.receive.polls import PollKey
from tieredstore.broker.receive.requests import ReceiveRequest
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import Int32, Int64, NoFields, Request
from tieredstore.broker.remoting.handlers.base import Handlers, answers, succeed
from tieredstore.broker.remoting.handlers.pop import (
    MAX_BYTES,
    MAX_COUNT,
    PopQueueHeader,
    check_popped,
    find_deadline_ms,
)
from tieredstore.broker.remoting.handlers.pull import parse_subscription
from tieredstore.broker.remoting.popped import make_fields
from tieredstore.errors import Busy


class PeekHeader(PopQueueHeader, kw_only=True):
    max_msg_nums: Int32 = 0


class NotificationHeader(PopQueueHeader, kw_only=True):
    """Header of NOTIFICATION. Times have the same meaning as in `PopHeader`."""

    poll_time: Int64 = 0
    born_time: Int64 = 0
    exp_type: str = ""
    exp: str = ""


class PopLookHandlers(Handlers):
    """Handlers for queries about pops, which deliver no messages."""

    @answers(RequestCode.PEEK_MESSAGE, PeekHeader, Action.SUB)
    async def peek(self, request: Request[PeekHeader]) -> RemotingCommand:
        """Return the next new messages of a group without delivering them."""
        header = request.header
        look = self._look(header, max_count=min(header.max_msg_nums, MAX_COUNT))
        peeked = await self._broker.looks.peek(look)
        fields = {**make_fields(), "restNum": str(peeked.rest)}
        if not peeked.messages:
            return RemotingCommand(
                ResponseCode.PULL_NOT_FOUND, fields, remark="NO_MESSAGE_IN_QUEUE"
            )
        records = [message.raw for message in peeked.messages]
        return RemotingCommand(ResponseCode.SUCCESS, fields, records, remark="FOUND")

    @answers(RequestCode.NOTIFICATION, NotificationHeader, Action.SUB)
    async def notify(self, request: Request[NotificationHeader]) -> RemotingCommand:
        """Return whether a pop would find a message, waiting for one if none are available."""
        header = request.header
        now_ms = self._broker.clock.now_ms()
        look = self._look(
            header,
            deadline_ms=find_deadline_ms(header.poll_time, header.born_time or now_ms, now_ms),
            expression=header.exp,
            expression_type=header.exp_type,
        )
        is_full = False
        try:
            found = await self._broker.looks.wait_for_messages(look)
        except Busy:
            found, is_full = False, True
        request.require_again(Action.SUB)
        return succeed({"hasMsg": str(found).lower(), "pollingFull": str(is_full).lower()})

    @answers(RequestCode.POLLING_INFO, PopQueueHeader, Action.GET)
    def count_waiting(self, request: Request[PopQueueHeader]) -> RemotingCommand:
        """Return how many pops wait with the same group, topic and queue id."""
        header = request.header
        group = check_popped(self._broker, header)
        key = PollKey(group.group_name, header.topic, max(header.queue_id, ALL_QUEUES))
        return succeed({"pollingNum": str(self._broker.receive.count_waiting(key))})

    @answers(RequestCode.POP_ROLLBACK, NoFields, Action.UPDATE)
    def roll_back(self, request: Request[NoFields]) -> RemotingCommand:
        """Return SUCCESS and do nothing. In Java this moves the state of pops from RocksDB to
        files. Here it is always in files."""
        return succeed()

    def _look(
        self,
        header: PopQueueHeader,
        *,
        max_count: int = 1,
        deadline_ms: int = 0,
        expression: str = "",
        expression_type: str = "",
    ) -> ReceiveRequest:
        group = check_popped(self._broker, header)
        return ReceiveRequest(
            group=group.group_name,
            topic=header.topic,
            subscription=parse_subscription(header.topic, expression, expression_type),
            max_count=max_count,
            deadline_ms=deadline_ms,
            queue_id=max(header.queue_id, ALL_QUEUES),
            max_bytes=MAX_BYTES,
        )
