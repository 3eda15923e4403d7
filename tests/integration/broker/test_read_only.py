"""`tieredstore broker --read-only` serves tiers that Java wrote, and tiers that this project
wrote."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from tests.kit.clients.reading_broker import reading_broker
from tests.kit.consuming import TOPIC, join, pull_messages, split_records
from tests.kit.paths import ROOT
from tests.kit.remoting import RemotingClient
from tests.kit.waiting import wait_for
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.send.sender import SendRequest
from tieredstore.message.encoding import Message
from tieredstore.testing.broker import Broker

VERB = [sys.executable, "-m", "tieredstore"]
NDJSON = ["--output", "ndjson"]
SUSPENDS = 2
SOON = {"readOnlyRefreshInterval": "100"}


def rows_of(*words: str) -> list[dict[str, object]]:
    done = subprocess.run([*VERB, *words, *NDJSON], capture_output=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return [orjson.loads(line) for line in done.stdout.splitlines()]


def tail(address: str, topic: str, body: str = "text") -> list[dict[str, object]]:
    places = ["--from-start", "--no-follow", "--body", body, "--at", address]
    return rows_of("tail", topic, *places)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def cat(tier: str, topic: str) -> list[dict[str, object]]:
    return rows_of("cat", "--tier", tier, "--topic", topic)


def place(row: dict[str, object]) -> tuple[int, int]:
    return int(str(row["queue_id"])), int(str(row["queue_offset"]))


def test_the_history_is_served_beside_its_live_broker(tmp_path: Path) -> None:
    with Broker() as broker:
        send = [*VERB, "send", "orders", "--at", broker.remoting]
        lines = b"".join(b"%d\n" % number for number in range(200))
        subprocess.run(send, input=lines, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        assert broker.flush_tier() == 200
        tier_folder = broker.folder / "tier"
        tier = f"file://{tier_folder}"
        expected = sorted((place(row), row["body"]) for row in cat(tier, "orders"))
        before = files(tier_folder)
        with reading_broker(tier, tmp_path / "reader") as addresses:
            found = sorted(
                (place(row), row["body"]) for row in tail(addresses["remoting"], "orders")
            )
            assert found == expected
            assert len(found) == 200
        assert files(tier_folder) == before
        subprocess.run(send, input=b"more\n", cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        assert broker.flush_tier() == 1


def test_what_its_broker_uploads_meanwhile_is_served_too(tmp_path: Path) -> None:
    async def wait_for_more(address: str) -> bytes:
        """Pull at the end of the queue, and wait until the next messages arrive."""
        async with await RemotingClient.open(address) as client:
            await join(client, "c")
            await asyncio.to_thread(
                send, TOPIC, "new"
            )  # it may come before the pull does: both ways it is answered
            response = await pull_messages(
                client, 1, 0, sysFlag=SUSPENDS, suspendTimeoutMillis=30_000
            )
            [message] = split_records(response.body_bytes)
            return bytes(message.body)

    def send(topic: str, body: str) -> None:
        broker.run(put(topic, body))
        broker.flush_tier()

    async def put(topic: str, body: str) -> None:
        await broker.services.sender.send(
            SendRequest("p", Message.create(topic, body.encode(), queue_id=0))
        )

    with Broker() as broker:
        send(TOPIC, "old")
        tier = f"file://{broker.folder / 'tier'}"
        with reading_broker(tier, tmp_path / "reader", SOON) as addresses:
            remoting = addresses["remoting"]
            assert [row["body"] for row in tail(remoting, TOPIC)] == ["old"]
            assert asyncio.run(wait_for_more(remoting)) == b"new"
            send("later", "first")
            wait_for(lambda: list_topics(remoting, "later") == ["later"])
            assert [row["body"] for row in tail(remoting, "later")] == ["first"]
            cast(Any, broker.services.store).delete_topics({"later"})
            wait_for(lambda: list_topics(remoting, "later") == [])
            assert [row["body"] for row in tail(remoting, TOPIC)] == ["old", "new"]


def list_topics(address: str, topic: str) -> list[object]:
    return [
        row["topic"] for row in rows_of("topic", "list", "--at", address) if row["topic"] == topic
    ]


def test_what_a_java_broker_wrote_is_served_at_its_offsets(
    tmp_path: Path, public_a: Path, public_a_manifest: dict[str, Any]
) -> None:
    expected: dict[str, dict[tuple[int, int], tuple[str, str]]] = {}
    for message in public_a_manifest["messages"]:
        if message.get("tiered"):
            there = message["queueId"], message["queueOffset"]
            what = message["uniqKey"], message["bodySHA256"]
            expected.setdefault(message["topic"], {})[there] = what
    assert sum(map(len, expected.values())) > 1000
    with reading_broker(f"file://{public_a / 'tiered'}", tmp_path / "reader") as addresses:
        for topic, messages in expected.items():
            rows = tail(addresses["remoting"], topic, "sha256")
            found = {place(row): (row["msg_id"], row["body"]) for row in rows}
            assert found == messages
            assert len(rows) == len(messages)


def test_what_would_write_has_no_permission_and_offsets_are_kept(tmp_path: Path) -> None:
    async def use(address: str) -> int:
        queue = {"topic": "orders", "queueId": 0}
        async with await RemotingClient.open(address) as client:
            for topic in ("orders", "new", "%RETRY%g"):
                fields = {"a": "g", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0}
                fields |= {"h": 0, "i": "", "j": 0, "k": False, "m": False}
                answer = await client.request(RequestCode.SEND_MESSAGE_V2, fields, b"body")
                assert answer.code == ResponseCode.NO_PERMISSION
            back = {"offset": 0, "group": "g", "delayLevel": 0, "originTopic": "orders"}
            answer = await client.request(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            assert answer.code == ResponseCode.NO_PERMISSION
            group = {"consumerGroup": "g", **queue}
            answer = await client.request(RequestCode.QUERY_CONSUMER_OFFSET, group)
            known = int(answer.ext_fields["offset"]) if answer.code == 0 else -1
            commit = {**group, "commitOffset": 3}
            assert (await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
            return known

    with Broker() as broker:
        send = [*VERB, "send", "orders", "--at", broker.remoting]
        subprocess.run([*send, *"abcdefgh"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        broker.flush_tier()
        tier = tmp_path / "tier"
        shutil.copytree(broker.folder / "tier", tier)
    for expected in (None, 3):
        with reading_broker(f"file://{tier}", tmp_path / "reader") as addresses:
            known = asyncio.run(use(addresses["remoting"]))
            if expected is not None:
                assert known == expected


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    tier = tmp_path / "tier"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tieredstore",
            "broker",
            "--read-only",
            "--tier",
            f"file://{tier}",
            "--state",
            str(tmp_path),
        ],
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "words", [["--read-only"], ["--tier", "file:///t"], [], ["--read-only", "--tier", "file:///t"]]
)
def test_options_that_do_not_go_together_are_refused(words: list[str]) -> None:
    done = subprocess.run(
        [*VERB, "broker", *words],
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2


def test_a_start_that_waits_for_its_tier_is_given_up_when_it_is_told_to_stop(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        tier = f"s3://bucket/tier?endpoint={endpoint}&region=us-east-1&path_style=true"
        state = ["--state", str(tmp_path / "state")]
        process = subprocess.Popen(
            [*VERB, "broker", "--read-only", "--tier", tier, *state],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
        )
        try:
            connection, _ = silent.accept()  # its first request, which gets no answer
            with connection:
                process.send_signal(signal.SIGTERM)
                _, log = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert b"the start has not ended in time" in log
