"""`tieredstore topic`, `send` and `tail` work on a running broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.kit.paths import ROOT
from tieredstore.testing.broker import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def command(broker: Broker, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "tieredstore", *words, "--at", broker.remoting],
        input=stdin,
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )


def rows(broker: Broker, *words: str, stdin: bytes = b"") -> list[dict[str, object]]:
    done = command(broker, *words, "--output", "ndjson", stdin=stdin)
    assert done.returncode == 0, done.stderr
    return [orjson.loads(line) for line in done.stdout.splitlines()]


def topics(broker: Broker) -> set[object]:
    return {row["topic"] for row in rows(broker, "topic", "list")}


def test_topics_are_made_listed_and_deleted(broker: Broker) -> None:
    assert command(broker, "topic", "create", "made", "--queues", "3").returncode == 0
    assert "made" in topics(broker)
    dry = command(broker, "topic", "delete", "made")
    assert b"3 queues" in dry.stdout
    assert "made" in topics(broker)
    assert command(broker, "topic", "delete", "made", "--yes").returncode == 0
    assert "made" not in topics(broker)


def test_what_is_sent_is_shown(broker: Broker) -> None:
    sent = rows(
        broker, "send", "orders", "one", "two", "--tag", "a", "--key", "k", "--property", "x=y"
    )
    sent += rows(broker, "send", "orders", stdin=b"three\nfour\n")
    assert len({row["msg_id"] for row in sent}) == 4
    shown = rows(broker, "tail", "orders", "--from-start", "--no-follow")
    assert sorted(str(row["body"]) for row in shown) == ["four", "one", "three", "two"]
    assert {row["msg_id"] for row in shown} == {row["msg_id"] for row in sent}
    [one] = (row for row in shown if row["body"] == "one")
    assert (one["tags"], one["keys"]) == ("a", ["k"])
    properties = one["properties"]
    assert isinstance(properties, dict)
    assert properties["x"] == "y"
    tagged = rows(broker, "tail", "orders", "--from-start", "--no-follow", "--tag", "a")
    assert sorted(str(row["body"]) for row in tagged) == ["one", "two"]


def test_tail_shows_what_the_tier_alone_has() -> None:
    with Broker(properties={"tieredStorageLevel": "FORCE"}) as broker:
        rows(broker, "send", "cold", stdin=b"".join(b"%d\n" % number for number in range(100)))
        assert broker.flush_tier() == 100
        shown = rows(broker, "tail", "cold", "--from-start", "--no-follow")
        assert sorted(int(str(row["body"])) for row in shown) == list(range(100))


def test_errors_are_one_line(broker: Broker) -> None:
    done = command(broker, "tail", "nowhere", "--no-follow")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    nobody = subprocess.run(
        [sys.executable, "-m", "tieredstore", "topic", "list", "--at", "127.0.0.1:1"],
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    assert nobody.returncode == 4
    assert nobody.stderr.count(b"\n") == 1


def test_verbs_sign_what_they_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"admin","password":"a-secret"}',
    }
    tools = tmp_path / "tools.yml"
    with Broker(properties=settings) as broker:
        unsigned = command(broker, "topic", "list")
        assert (unsigned.returncode != 0, b"signature" in unsigned.stderr) == (True, True)
        tools.write_text("accessKey: admin\nsecretKey: a-secret\n")
        file = ("--credentials", str(tools))
        assert command(broker, "topic", "create", "made", *file).returncode == 0
        assert rows(broker, "send", "made", "one", *file)[0]["topic"] == "made"
        shown = rows(broker, "tail", "made", "--from-start", "--no-follow", *file)
        assert [row["body"] for row in shown] == ["one"]
        tools.write_text("accessKey: admin\nsecret: a-secret\n")
        bad = command(broker, "topic", "list", *file)
        assert bad.returncode != 0
        assert b"secretKey" in bad.stderr
        assert b"a-secret" not in bad.stderr
        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "admin")
        half = command(broker, "topic", "list")
        assert b"ROCKETMQ_SECRET_KEY" in half.stderr
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "a-secret")
        assert "made" in topics(broker)
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "wrong")
        assert b"check signature failed" in command(broker, "topic", "list").stderr
