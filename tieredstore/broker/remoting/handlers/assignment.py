"""Queue assignment by the broker (code 400), and the pull or pop mode of groups (401, 402)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from tieredstore.broker.auth.policies import Action, Want
from tieredstore.broker.clients.assignment import (
    STRATEGIES,
    AssignedQueue,
    allocate_for_pop,
)
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import Group, JsonBody, NoFields, Request, Topic
from tieredstore.broker.remoting.handlers.base import (
    Handlers,
    answers,
    list_source_wants,
    succeed,
    succeed_with,
)
from tieredstore.broker.state.request_modes import Int32, Mode, RequestMode
from tieredstore.message.names import RETRY_PREFIX

_BROADCASTING: Final = "BROADCASTING"
_POP: Final = "POP"


class AssignmentBody(JsonBody, kw_only=True, rename="camel"):
    topic: str
    consumer_group: str
    client_id: str = ""
    message_model: Literal["CLUSTERING", "BROADCASTING"] = "CLUSTERING"
    strategy_name: str = ""

    def list_wants(self, *actions: Action) -> Iterator[Want]:
        """Yield the permissions on the group and on the topic."""
        return list_source_wants(self.consumer_group, (self.topic,), *actions)


class ModeBody(JsonBody, kw_only=True, rename="camel"):
    topic: Topic
    consumer_group: Group
    mode: Mode = "PULL"
    pop_share_queue_num: Int32 = 0


class AssignmentHandlers(Handlers):
    """Handlers for consumers whose queues are assigned by the broker."""

    @answers(RequestCode.QUERY_ASSIGNMENT, AssignmentBody, Action.SUB)
    async def assign(self, request: Request[AssignmentBody]) -> RemotingCommand:
        """Return the queues that a client should read, and whether to pull or pop them. Without a
        list of queues in the response, the client keeps its current queues and asks again."""
        body = request.header
        mode = self._find_mode(body.topic, body.consumer_group)
        queues = await self._broker.topic_queues.list_queues(body.topic)
        assigned = None if queues is None else self._allocate(body, mode, queues)
        if assigned is None:
            return succeed_with({})
        return succeed_with(
            {
                "messageQueueAssignments": [
                    {
                        "messageQueue": {
                            "brokerName": queue.broker_name,
                            "queueId": queue.queue_id,
                            "topic": queue.topic,
                        },
                        "mode": mode.mode,
                    }
                    for queue in assigned
                ]
            }
        )

    def _allocate(
        self, body: AssignmentBody, mode: RequestMode, queues: list[AssignedQueue]
    ) -> list[AssignedQueue] | None:
        settings = self._broker.settings
        if body.message_model == _BROADCASTING or not settings.server_load_balancer_enable:
            return queues
        client_ids = sorted(self._broker.consumers.list_client_ids(body.consumer_group))
        strategy = STRATEGIES.get(body.strategy_name)
        if strategy is None or not client_ids or not queues or not body.client_id:
            return None
        if mode.mode == _POP:
            share_count = mode.pop_share_queue_num
            return allocate_for_pop(strategy, body.client_id, queues, client_ids, share_count)
        return strategy(body.client_id, queues, client_ids)

    def _find_mode(self, topic: str, group: str) -> RequestMode:
        found: RequestMode | None = self._broker.request_modes.find_mode(topic, group)
        if found is not None:
            return found
        settings = self._broker.settings
        if topic.startswith(RETRY_PREFIX) or settings.default_message_request_mode != _POP:
            return RequestMode(topic=topic, consumer_group=group)
        return RequestMode(
            topic=topic,
            consumer_group=group,
            mode=_POP,
            pop_share_queue_num=settings.default_pop_share_queue_num,
        )

    @answers(RequestCode.SET_MESSAGE_REQUEST_MODE, ModeBody, Action.UPDATE)
    async def set_mode(self, request: Request[ModeBody]) -> RemotingCommand:
        """Set whether a group pulls or pops a topic. The setting is on disk on return."""
        body, broker = request.header, self._broker
        if body.topic.startswith(RETRY_PREFIX):
            raise Refused(Reason.NO_PERMISSION, "retry topic is not allowed to set mode")
        if broker.topics.find_topic(body.topic) is None:
            raise Refused(Reason.TOPIC_NOT_EXIST, f"topic[{body.topic}] not exist")
        if broker.groups.find_group(body.consumer_group) is None:
            raise Refused(Reason.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        broker.request_modes.set_mode(
            RequestMode(
                topic=body.topic,
                consumer_group=body.consumer_group,
                mode=body.mode,
                pop_share_queue_num=body.pop_share_queue_num,
            )
        )
        await broker.request_modes.persist()
        return succeed()

    @answers(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, NoFields, Action.GET)
    def list_modes(self, request: Request[NoFields]) -> RemotingCommand:
        """Return the modes of all groups in the format of their file."""
        return succeed_with(self._broker.request_modes.list_fields())
