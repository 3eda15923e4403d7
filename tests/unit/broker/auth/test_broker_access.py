"""Access control of a broker with users and policies, over both protocols."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.kit.access import ADMIN, add_user, make_broker, serving
from tests.kit.grpc_types import find_message
from tests.kit.signed import request_as, sign_call
from tieredstore.broker.auth.access import NotAuthenticated
from tieredstore.broker.auth.policies import Action
from tieredstore.broker.auth.users import User, UserChange, UserManager
from tieredstore.broker.grpc.protocol import Call, Code
from tieredstore.broker.grpc.service import Service
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import read_credentials
from tieredstore.broker.remoting.handlers.send import EndTransactionHeader
from tieredstore.errors import Invalid

OK, DENIED = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION
SEND = {
    **dict.fromkeys("cdefghijklm", "0"),
    "a": "P",
    "c": "TBW102",
    "d": "4",
    "i": "",
    "j": "0",
    "k": "false",
    "m": "false",
}


def test_without_a_signature_that_fits_everything_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (_, client):
            code = RequestCode.GET_BROKER_RUNTIME_INFO
            assert (await client.request(code)).code == DENIED
            assert (await request_as(client, *ADMIN, code)).code == OK
            wrong = [("admin", "wrong"), ("nobody", "admin-secret"), ("", ""), ("admin", "")]
            remarks = {(await request_as(client, *user, code)).remark for user in wrong[:2]}
            assert len(remarks) == 1  # which of both was wrong is not told
            for user in wrong:
                assert (await request_as(client, *user, code)).code == DENIED
            for fields in (
                {"AccessKey": "admin"},
                {"AccessKey": "admin", "Signature": ""},
                {"AccessKey": "admin", "Signature": "é"},
                {"AccessKey": "admin", "Signature": "AAAA"},
            ):
                assert (await client.request(code, fields)).code == DENIED
            # Unserved codes reveal nothing to an unauthorised client.
            assert (await client.request(31_999)).code == DENIED

    asyncio.run(run())


def test_a_changed_request_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (_, client):
            from tests.kit.signed import sign_fields

            body = b'{"groupName":"G"}'
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            fields = sign_fields({"x": "1"}, body, *ADMIN)
            assert (await client.request(code, fields, body)).code == OK
            assert (await client.request(code, fields, body + b" ")).code == DENIED
            assert (await client.request(code, {**fields, "x": "2"}, body)).code == DENIED
            assert (await client.request(code, {**fields, "y": "1"}, body)).code == DENIED

    asyncio.run(run())


def test_a_user_may_do_what_its_policies_allow(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (_, client):
            await add_user(
                client,
                "alice",
                "a-secret",
                ("Topic:orders", "Pub", "Allow"),
                ("Group:G", "Sub", "Allow"),
            )
            alice = ("alice", "a-secret")
            send = RequestCode.SEND_MESSAGE_V2
            # A send creates the topic, so no user needs the right to read its template.
            answer = await request_as(client, *alice, send, {**SEND, "b": "orders"}, b"body")
            assert answer.code == OK, answer.remark
            denied = await request_as(client, *alice, send, {**SEND, "b": "others"}, b"body")
            assert denied.code == DENIED
            assert "User:alice has no permission to access Topic:others from 127.0.0.1" in (
                denied.remark or ""
            )
            pull = {
                "topic": "orders",
                "consumerGroup": "G",
                "queueId": 0,
                "queueOffset": 0,
                "maxMsgNums": 1,
                "sysFlag": 4,
                "commitOffset": 0,
                "suspendTimeoutMillis": 0,
                "subscription": "*",
                "subVersion": 0,
            }
            assert (await request_as(client, *alice, RequestCode.PULL_MESSAGE, pull)).code == DENIED
            for code in (
                RequestCode.GET_BROKER_CONFIG,
                RequestCode.UPDATE_BROKER_CONFIG,
                RequestCode.AUTH_LIST_USERS,
                RequestCode.AUTH_CREATE_USER,
                31_999,
            ):
                assert (await request_as(client, *alice, code)).code == DENIED

            heartbeat: dict[str, Any] = {
                "clientID": "c",
                "producerDataSet": [{"groupName": "P"}],
                "consumerDataSet": [],
            }
            beat = RequestCode.HEART_BEAT
            body = json.dumps(heartbeat).encode()
            assert (await request_as(client, *alice, beat, {}, body)).code == OK
            consumer = {
                "groupName": "G",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "subscriptionDataSet": [{"topic": "%RETRY%G", "subString": "*"}],
                "unitMode": False,
            }
            for topic, expected in ((None, OK), ("orders", DENIED)):
                if topic:
                    consumer["subscriptionDataSet"] = [{"topic": topic, "subString": "*"}]
                body = json.dumps({**heartbeat, "consumerDataSet": [consumer]}).encode()
                assert (await request_as(client, *alice, beat, {}, body)).code == expected
            bad = await request_as(client, *alice, beat, {}, b"{")
            assert bad.code == ResponseCode.INVALID_PARAMETER

    asyncio.run(run())


def test_users_and_policies_are_listed_changed_deleted_and_there_after_a_restart(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (_, client):
            await add_user(client, "bob", "b-secret", ("Topic:a", "Pub", "Allow"))
            await add_user(client, "eve", "e-secret")
            listed = await request_as(client, *ADMIN, RequestCode.AUTH_LIST_USERS)
            users = json.loads(listed.body_bytes)
            assert {user["username"]: user["userType"] for user in users} == {
                "admin": "Super",
                "bob": "Normal",
                "eve": "Normal",
            }
            assert b"-secret" not in listed.body_bytes
            twice = await request_as(
                client,
                *ADMIN,
                RequestCode.AUTH_CREATE_USER,
                {"username": "bob"},
                b'{"password":"x"}',
            )
            assert twice.code == ResponseCode.INVALID_PARAMETER
            change = b'{"userStatus":"disable"}'
            code = RequestCode.AUTH_UPDATE_USER
            assert (await request_as(client, *ADMIN, code, {"username": "eve"}, change)).code == OK
            route = RequestCode.GET_ROUTEINFO_BY_TOPIC
            eve = await request_as(client, "eve", "e-secret", route, {"topic": "a"})
            assert eve.code == DENIED
            assert eve.remark == "the user is disabled."
        async with serving(tmp_path) as (broker, client):
            acl = await request_as(
                client, *ADMIN, RequestCode.AUTH_GET_ACL, {"subject": "User:bob"}
            )
            (policy,) = json.loads(acl.body_bytes)["policies"]
            assert policy["entries"][0]["resource"] == "Topic:a"
            bob = ("bob", "b-secret")
            found = await request_as(client, *bob, route, {"topic": "a"})
            assert found.code == ResponseCode.TOPIC_NOT_EXIST
            delete = RequestCode.AUTH_DELETE_ACL
            fields = {"subject": "User:bob", "resource": "Topic:a"}
            assert (await request_as(client, *ADMIN, delete, fields)).code == OK
            again = await request_as(client, *ADMIN, delete, fields)
            assert again.code == ResponseCode.POLICY_NOT_EXIST
            assert (await request_as(client, *bob, route, {"topic": "a"})).code == DENIED
            remove = RequestCode.AUTH_DELETE_USER
            assert (await request_as(client, *ADMIN, remove, {"username": "bob"})).code == OK
            gone = await request_as(client, *bob, route, {"topic": "a"})
            assert gone.remark == "check signature failed."
            assert broker.services.access.acls.find_acl("User:bob") is None

    asyncio.run(run())


def test_s01_secrets_are_in_no_log_no_answer_no_error_and_in_a_file_for_its_owner_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def run() -> None:
        async with serving(tmp_path) as (broker, client):
            await add_user(client, "bob", "b-secret")
            shown = [
                repr(broker.settings),
                repr(broker.services),
                repr(broker.services.access.users.list_users()),
                repr(User(username="x", password="b-secret")),
                repr(UserChange(username="x", password="b-secret")),
            ]
            for code in (
                RequestCode.GET_BROKER_CONFIG,
                RequestCode.GET_NAMESRV_CONFIG,
                RequestCode.AUTH_LIST_USERS,
            ):
                answer = await request_as(client, *ADMIN, code)
                shown.append(answer.body_bytes.decode() + (answer.remark or ""))
            bad = b'{"password":"b-secret","userType":5}'
            for code in (RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER):
                answer = await request_as(client, *ADMIN, code, {"username": "bob"}, bad)
                assert answer.code == ResponseCode.INVALID_PARAMETER
                shown.append(answer.remark or "")
            assert "-secret" not in "".join(shown)

    asyncio.run(run())
    for name in ("authUsers.json", "authAcls.json"):
        path = tmp_path / "config" / name
        if path.exists():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "config" / "authUsers.json").exists()
    assert "-secret" not in caplog.text
    with pytest.raises(Invalid) as caught:
        asyncio.run(
            make_broker(tmp_path / "b", initAuthenticationUser='{"password":"x-secret"').start()
        )
    assert "secret" not in str(caught.value)


def test_s01_credentials_are_not_shown() -> None:
    fields = {"AccessKey": "a", "Signature": "c2VjcmV0"}
    found = read_credentials(RemotingCommand(code=1, ext_fields=fields))
    assert repr(found) == "Credentials('a')"
    assert "c2VjcmV0" not in str(NotAuthenticated("x"))


def test_the_end_of_a_transaction_without_a_topic_wants_all_topics() -> None:
    for fields, expected in (({}, "Topic:"), ({"topic": "orders"}, "Topic:orders")):
        header = EndTransactionHeader(
            producer_group="P",
            commit_log_offset=0,
            tran_state_table_offset=0,
            commit_or_rollback=8,
            **fields,
        )
        assert [str(want) for want in header.list_wants(Action.PUB)] == [expected]


def test_authorization_without_authentication_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="expected authenticationEnabled=true too"):
        asyncio.run(make_broker(tmp_path, authenticationEnabled="false").start())


def test_users_are_not_changed_by_everybody_where_nobody_is_checked(tmp_path: Path) -> None:
    async def run() -> None:
        keys = {"authenticationEnabled": "false", "authorizationEnabled": "false"}
        async with serving(tmp_path, **keys) as (_, client):
            for code in range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACLS + 1):
                answer = await client.request(code, {"username": "x", "subject": "User:x"}, b"{}")
                assert answer.code == DENIED, code

    asyncio.run(run())


def test_authentication_alone_lets_every_user_do_everything(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, authorizationEnabled="false") as (_, client):
            await add_user(client, "bob", "b-secret")
            code = RequestCode.GET_BROKER_CONFIG
            assert (await request_as(client, "bob", "b-secret", code)).code == OK
            assert (await client.request(code)).code == DENIED

    asyncio.run(run())


def test_a_users_file_that_others_may_read_is_closed(tmp_path: Path) -> None:
    async def run() -> None:
        users = UserManager(tmp_path)
        users.create_user(UserChange(username="a", password="b"))
        (tmp_path / "authUsers.json.tmp").write_bytes(b"left behind")
        (tmp_path / "authUsers.json.tmp").chmod(0o666)
        await users.persist()
        assert stat.S_IMODE(users.path.stat().st_mode) == 0o600
        again = UserManager(tmp_path)
        await again.load()
        assert again.find_user("a") == users.find_user("a")

    asyncio.run(run())


GRPC_USER = ("alice", "a-secret")


async def status_of(service: Service, method: str, request: Any, call: Call) -> Code:
    if method in {"ReceiveMessage", "Telemetry"}:
        async with asyncio.timeout(10), aclosing(service.stream(method, request, call)) as answers:
            async for response in answers:
                return Code(response.status.code)
        raise AssertionError("no response")
    async with asyncio.timeout(10):
        return Code((await service.answer(method, request, call)).status.code)


def resource(name: str) -> Any:
    return find_message("Resource")(name=name)


def test_grpc_calls_are_checked(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (broker, client):
            await add_user(
                client,
                *GRPC_USER,
                ("Topic:orders", "Pub", "Allow"),
                ("Topic:news", "Sub", "Allow"),
                ("Group:G", "Sub", "Allow"),
            )
            service = Service(broker.services, access=broker.services.access)
            message = find_message("Message")
            properties = find_message("SystemProperties")(message_id="0" * 34)

            def send(topic: str) -> Any:
                one = message(topic=resource(topic), body=b"x", system_properties=properties)
                return find_message("SendMessageRequest")(messages=[one])

            def call(user: tuple[str, str] | None = GRPC_USER, **more: Any) -> Call:
                metadata = {"x-mq-client-id": "c", **(sign_call(*user) if user else {}), **more}
                return Call(metadata=metadata, peer="127.0.0.1:5")

            ack = find_message("AckMessageRequest")
            cases = [
                ("SendMessage", send("orders"), call(), Code.OK),
                ("SendMessage", send("others"), call(), Code.FORBIDDEN),
                ("SendMessage", send("orders"), call(None), Code.UNAUTHORIZED),
                ("SendMessage", send("orders"), call(("alice", "x")), Code.UNAUTHORIZED),
                ("SendMessage", send("orders"), call(("bob", "a-secret")), Code.UNAUTHORIZED),
                ("SendMessage", send("any"), call(ADMIN), Code.OK),
            ]
            cases += [
                ("SendMessage", send("orders"), call(authorization=bad), Code.UNAUTHORIZED)
                for bad in ("", "x", "MQv2-HMAC-SHA1 Credential=alice", "MQv2-HMAC-SHA1 a,b")
            ]
            later: dict[str, Any] = {"x-mq-date-time": "20260101T000001Z"}
            cases.append(
                ("SendMessage", send("orders"), call(GRPC_USER, **later), Code.UNAUTHORIZED)
            )
            for group, topic, expected in (
                ("G", "news", Code.BAD_REQUEST),  # allowed, and there is nothing in it
                ("H", "news", Code.FORBIDDEN),
                ("G", "orders", Code.FORBIDDEN),
            ):
                request = ack(group=resource(group), topic=resource(topic))
                cases.append(("AckMessage", request, call(), expected))
            receive = find_message("ReceiveMessageRequest")(group=resource("H"))
            receive.message_queue.topic.name = "news"
            cases.append(("ReceiveMessage", receive, call(), Code.FORBIDDEN))
            cases.append(("ReceiveMessage", receive, call(None), Code.UNAUTHORIZED))
            route = find_message("QueryRouteRequest")
            cases.append(("QueryRoute", route(topic=resource("x")), call(), Code.FORBIDDEN))
            beat = find_message("HeartbeatRequest")
            cases.append(("Heartbeat", beat(group=resource("G")), call(), Code.OK))
            cases.append(("Heartbeat", beat(group=resource("H")), call(), Code.FORBIDDEN))
            lite = find_message("SyncLiteSubscriptionRequest")(
                group={"name": "H"}, topic={"name": "T"}
            )
            cases.append(("SyncLiteSubscription", lite, call(), Code.FORBIDDEN))
            for method, request, made, expected in cases:
                assert await status_of(service, method, request, made) is expected, request

            async def commands(topic: str) -> AsyncIterator[Any]:
                command = find_message("TelemetryCommand")()
                command.settings.publishing.topics.add(name=topic)
                yield command
                await asyncio.sleep(30)

            for topic, made, expected in (
                ("orders", call(), Code.OK),
                ("others", call(GRPC_USER, **{"x-mq-client-id": "d"}), Code.FORBIDDEN),
                ("orders", call(None), Code.UNAUTHORIZED),
            ):
                assert await status_of(service, "Telemetry", commands(topic), made) is expected

            # A client cannot end another one by its name.
            terminate = find_message("NotifyClientTerminationRequest")()
            opened = call()
            opening = service.stream("Telemetry", commands("orders"), opened)
            async with aclosing(opening) as stream:
                assert Code((await anext(stream)).status.code) is Code.OK
                for user, is_there in ((ADMIN, True), (GRPC_USER, False)):
                    await service.answer("NotifyClientTermination", terminate, call(user))
                    assert (service.sessions.find(opened) is not None) is is_there

    asyncio.run(run())


def test_an_open_stream_has_the_rights_of_today(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (broker, client):
            code = RequestCode.AUTH_UPDATE_USER
            service = Service(broker.services, access=broker.services.access)
            said: asyncio.Queue[Any] = asyncio.Queue()

            async def commands() -> AsyncIterator[Any]:
                while True:
                    yield await said.get()

            settings = find_message("TelemetryCommand")()
            settings.settings.publishing.topics.add(name="orders")
            beat = find_message("HeartbeatRequest")()

            async def change(user_type: str, status: str) -> None:
                body = {"userType": user_type, "userStatus": status}
                answer = await request_as(
                    client, *ADMIN, code, {"username": "alice"}, json.dumps(body).encode()
                )
                assert answer.code == OK

            await add_user(client, *GRPC_USER)
            await change("Super", "enable")
            call = Call(
                metadata={"x-mq-client-id": "c", **sign_call(*GRPC_USER)}, peer="127.0.0.1:5"
            )
            async with aclosing(service.stream("Telemetry", commands(), call)) as stream:
                for user_type, status, expected in (
                    ("Super", "enable", Code.OK),
                    ("Normal", "enable", Code.FORBIDDEN),
                    ("Super", "enable", Code.OK),
                    ("Super", "disable", Code.UNAUTHORIZED),
                ):
                    await change(user_type, status)
                    said.put_nowait(settings)
                    async with asyncio.timeout(10):
                        assert Code((await anext(stream)).status.code) is expected
                    assert await status_of(service, "Heartbeat", beat, call) is expected

            # No other client keeps this one alive.
            await change("Super", "enable")
            producers = broker.services.producers
            async with aclosing(service.stream("Telemetry", commands(), call)) as stream:
                said.put_nowait(settings)
                assert Code((await anext(stream)).status.code) is Code.OK
                session = service.sessions.find(call)
                assert session is not None
                producers.remove_session(session)
                others = Call(metadata={"x-mq-client-id": "c", **sign_call(*ADMIN)})
                for made, is_there in ((others, False), (call, True)):
                    assert await status_of(service, "Heartbeat", beat, made) is Code.OK
                    assert (producers.find_session("orders") is not None) is is_there

    asyncio.run(run())
