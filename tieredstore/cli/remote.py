"""BrokerClient: a remoting client for verbs, with credentials."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

import msgspec
import orjson
import yaml

from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection, connect
from tieredstore.broker.remoting.signing import SessionCredentials
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.errors import Busy, Corrupt, Invalid
from tieredstore.message.properties import UNIQ_KEY, encode_properties
from tieredstore.message.record import StoredMessage, decode_record

TIMEOUT_MS: Final = 10_000
GROUP: Final = "TOOLS_CONSUMER"
PRODUCER_GROUP: Final = "CLI_PRODUCER"
_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
_BUSY: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})
_SUBSCRIPTION_IN_REQUEST: Final = 4
_MAY_WAIT: Final = 2


class Sent(NamedTuple):
    """Result of a send. `msg_id`: UNIQ_KEY of the message."""

    msg_id: str
    offset_msg_id: str
    queue_id: int
    queue_offset: int


class Pulled(NamedTuple):
    """Messages of a queue, with the offset of the next pull."""

    messages: list[StoredMessage]
    next_offset: int


class BrokerClient:
    """Connection to a broker, used as a context manager. `credentials`: sign the requests. Calls
    raise Unavailable if the broker does not respond, Busy if it cannot accept requests at the
    moment, and Invalid if it refuses the request."""

    def __init__(self, address: str, credentials: SessionCredentials | None = None) -> None:
        self._address = address
        self._credentials = credentials
        self._runner = asyncio.Runner()
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        self._runner.__enter__()
        try:
            self._connection = self._runner.run(connect(self._address, timeout_ms=TIMEOUT_MS))
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        async def close() -> None:
            if self._connection is not None:
                self._connection.close()

        self._runner.run(close())
        self._runner.close()

    def _ask(
        self,
        code: RequestCode,
        fields: Mapping[str, object],
        body: bytes = b"",
        timeout_ms: int = TIMEOUT_MS,
    ) -> RemotingCommand:
        assert self._connection is not None
        texts = {name: _show_field(value) for name, value in fields.items()}
        if self._credentials is not None:
            texts = self._credentials.sign(texts, body)
        return self._runner.run(self._connection.request(code, texts, body, timeout_ms))

    def _require(
        self, code: RequestCode, fields: Mapping[str, object], body: bytes = b""
    ) -> RemotingCommand:
        answer = self._ask(code, fields, body)
        if answer.code != ResponseCode.SUCCESS:
            raise self._refusal(answer)
        return answer

    def _refusal(self, answer: RemotingCommand) -> Exception:
        text = f"broker {self._address}: {answer.remark or f'response code {answer.code}'}"
        return Busy(text) if answer.code in _BUSY else Invalid(text)

    # Topics

    def list_topics(self) -> list[str]:
        answer = self._require(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        topics: list[str] = orjson.loads(answer.body_bytes).get("topicList", [])
        return sorted(topics)

    def create_topic(self, topic: str, queues: int) -> None:
        self._require(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": queues,
                "writeQueueNums": queues,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
            },
        )

    def delete_topic(self, topic: str) -> None:
        self._require(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})

    def find_queues(self, topic: str) -> list[int]:
        """Return the ids of the readable queues of a topic. Raises Invalid for an unknown topic."""
        answer = self._require(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        data = orjson.loads(answer.body_bytes)
        return list(range(max(found["readQueueNums"] for found in data["queueDatas"])))

    # Messages

    def send(
        self, topic: str, body: bytes, properties: Mapping[str, str], default_queues: int = 4
    ) -> Sent:
        msg_id = secrets.token_hex(16).upper()
        encoded = encode_properties({UNIQ_KEY: msg_id, "WAIT": "true", **properties})
        answer = self._ask(
            RequestCode.SEND_MESSAGE_V2,
            {
                "a": PRODUCER_GROUP,
                "b": topic,
                "c": "TBW102",
                "d": default_queues,
                "e": -1,
                "f": 0,
                "g": time.time_ns() // 1_000_000,
                "h": 0,
                "i": encoded.decode(),
                "j": 0,
                "k": False,
                "m": False,
            },
            body,
        )
        if answer.code not in _STORED:
            raise self._refusal(answer)
        found = answer.ext_fields
        return Sent(msg_id, found["msgId"], int(found["queueId"]), int(found["queueOffset"]))

    def find_offset(self, code: RequestCode, topic: str, queue_id: int) -> int:
        """Return the minimum or maximum offset of a queue (GET_MIN_OFFSET, GET_MAX_OFFSET)."""
        answer = self._require(code, {"topic": topic, "queueId": queue_id})
        return int(answer.ext_fields["offset"])

    def pull(
        self, topic: str, queue_id: int, offset: int, *, expression: str = "*", wait_ms: int = 0
    ) -> Pulled:
        """Pull messages of a queue, waiting up to `wait_ms` if none are available."""
        flags = _SUBSCRIPTION_IN_REQUEST | (_MAY_WAIT if wait_ms else 0)
        answer = self._ask(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": GROUP,
                "topic": topic,
                "queueId": queue_id,
                "queueOffset": offset,
                "maxMsgNums": 32,
                "sysFlag": flags,
                "commitOffset": 0,
                "suspendTimeoutMillis": wait_ms,
                "subscription": expression,
                "subVersion": 0,
                "expressionType": "TAG",
            },
            timeout_ms=wait_ms + TIMEOUT_MS,
        )
        if answer.code not in {
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        }:
            raise self._refusal(answer)
        next_offset = int(answer.ext_fields["nextBeginOffset"])
        return Pulled(list(_split_records(answer.body_bytes)), next_offset)


def _split_records(data: bytes) -> Iterator[StoredMessage]:
    position = 0
    while position < len(data):
        message = decode_record(data, position)
        if message.size <= 0:
            raise Corrupt(f"pulled records: no record at byte {position}", offset=position)
        yield message
        position += message.size


def _show_field(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


ACCESS_KEY_VARIABLE: Final = "ROCKETMQ_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "ROCKETMQ_SECRET_KEY"  # noqa: S105 - a name


def find_credentials(path: Path | None) -> SessionCredentials | None:
    """Read credentials from a file like mqadmin's `tools.yml` or, without a file, from the
    environment variables ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY. Returns None if they are not
    set. Raises Invalid or Unavailable."""
    if path is not None:
        return _read_file(path)
    access_key = os.environ.get(ACCESS_KEY_VARIABLE)
    secret_key = os.environ.get(SECRET_KEY_VARIABLE)
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        raise Invalid(
            f"environment: expected {ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}, found one"
        )
    return SessionCredentials(access_key=access_key, secret_key=secret_key)


def _read_file(path: Path) -> SessionCredentials:
    with wrap_os_errors("read", path):
        data = path.read_bytes()
    try:
        return msgspec.convert(yaml.safe_load(data), type=SessionCredentials, strict=False)
    except (yaml.YAMLError, msgspec.ValidationError):
        raise Invalid(  # the value may be a secret
            f"{path}: expected the keys accessKey and secretKey, as in mqadmin's tools.yml",
            path=str(path),
        ) from None
