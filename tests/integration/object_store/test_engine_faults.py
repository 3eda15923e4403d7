"""Offloads, the tiered store and the command line handle faults of an object store."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import Ran, tieredstore
from tests.kit.fault_proxy.faults import (
    answer,
    change_reply,
    cut_body,
    lose_reply,
    slow_down,
)
from tests.kit.fault_proxy.http import Fault, Forward, Reply, Request
from tests.kit.fault_proxy.proxy import FaultProxy
from tests.kit.object_store.servers import CREDENTIALS, ObjectStore
from tests.kit.object_store.tiers import BROKER, CLUSTER
from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.config import config_from_properties, load_broker_conf
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.errors import Fenced, Invalid
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.metrics import Metrics
from tieredstore.tier.store import TieredMessageStore

MESSAGES = 19
SECRET = "a-secret-that-nobody-may-see"
NAMES = ["--broker", BROKER, "--cluster", CLUSTER]
IMPATIENT = {"max_attempts": "2"}


@pytest.fixture
def proxy(strict_proxy: FaultProxy) -> FaultProxy:
    return strict_proxy


@pytest.fixture
def source(golden: Path, tmp_path: Path) -> Path:
    """A broker's store of 19 messages. Their topics are uploaded to the tier."""
    shutil.copytree(golden / "local-plain", tmp_path / "store")
    return tmp_path / "store"


def offload(source: Path, store: ObjectStore, **options: str) -> Ran:
    return tieredstore(
        "offload", source, "--tier", store.url(**IMPATIENT, **options),
        "--state", source.parent / "state", *NAMES, "--quiet", "--output", "json",
    )  # fmt: skip


def check(store: ObjectStore, proxy: FaultProxy) -> None:
    """Check without the proxy that each message exists once, undamaged."""
    proxy.heal()
    ran = tieredstore("verify", "--tier", store.url(), "--output", "json")
    assert (ran.code, ran.record["findings"]) == (0, []), ran.err
    assert ran.record["messages"] == MESSAGES


@pytest.mark.parametrize("status", [500, 503])
def test_o01_an_offload_comes_through_single_failures_of_any_operation(
    source: Path, versitygw: ObjectStore, proxy: FaultProxy, status: int
) -> None:
    for operation in ("PutObject", "GetObject", "HeadObject", "ListObjectsV2", "DeleteObjects"):
        proxy.inject(answer(status, "InternalError"), operation, calls=range(1, 200, 3))
    ran = offload(source, versitygw.through(proxy.endpoint))
    assert (ran.code, ran.record["messages"]) == (0, MESSAGES), ran.err
    check(versitygw, proxy)


def test_o01_an_offload_that_cannot_write_says_so_and_goes_on_later(
    source: Path, versitygw: ObjectStore, proxy: FaultProxy
) -> None:
    proxy.inject(answer(500, "InternalError"), "PutObject", key=r"/[cu]\.", calls=range(4, 10_000))
    failed = offload(source, versitygw.through(proxy.endpoint))
    assert failed.code != 0
    assert "Traceback" not in failed.err
    proxy.heal()
    again = offload(source, versitygw.through(proxy.endpoint))
    assert again.code == 0, again.err
    check(versitygw, proxy)


def test_o03_an_offload_with_every_second_reply_lost_uploads_nothing_twice(
    source: Path, versitygw: ObjectStore, proxy: FaultProxy
) -> None:
    lost = proxy.inject(
        lose_reply(), "PutObject", "DeleteObjects", "CompleteMultipartUpload",
        calls=range(1, 1000, 2),
    )  # fmt: skip
    ran = offload(source, versitygw.through(proxy.endpoint))
    assert (ran.code, ran.record["messages"]) == (0, MESSAGES), ran.err
    assert lost.hits > 5
    check(versitygw, proxy)


def test_o05_what_is_read_comes_right_through_broken_connections(
    source: Path, versitygw: ObjectStore, proxy: FaultProxy
) -> None:
    """Reads over broken connections return correct data. The fault interrupts each read once,
    because a fault at every second request could hit all attempts of one read."""
    cut, continues = cut_body(17, reset=True), 0

    def cut_once(request: Request, forward: Forward) -> Reply:
        nonlocal continues
        if request.header("If-Match"):
            continues += 1
            return forward(request)
        return cut(request, forward)

    assert offload(source, versitygw).code == 0
    proxy.inject(cut_once, "GetObject")
    ran = tieredstore(
        "verify", "--tier", versitygw.through(proxy.endpoint).url(), "--output", "json"
    )
    assert (ran.code, ran.record["messages"], ran.record["findings"]) == (0, MESSAGES, []), ran.err
    assert continues > 5


def damage(content: bytes) -> Fault:
    """Change the last byte of `content` in every reply that has this content."""

    def change(reply: Reply) -> Reply:
        wrong = content[:-1] + bytes([content[-1] ^ 1])
        return replace(reply, body=reply.body.replace(content, wrong))

    return change_reply(change)


@pytest.mark.parametrize(
    ("group_bytes", "part"),
    # properties have no checksum in the format of messages, and a piece of a group has one of all
    # of it
    [("0", "body"), ("16777216", "body"), ("16777216", "properties")],
    ids=["body-by-itself", "body-in-a-group", "properties-in-a-group"],
)
def test_o06_wrong_bytes_are_damage_and_never_a_message(
    source: Path, versitygw: ObjectStore, proxy: FaultProxy, group_bytes: str, part: str
) -> None:
    assert offload(source, versitygw, group_bytes=group_bytes).code == 0
    assert any("/.groups/" in key for key in versitygw.keys("tier")) == (group_bytes != "0")
    cat = ["--topic", "TopicTest", "--output", "ndjson"]
    right = tieredstore("cat", "--tier", versitygw.url(), *cat).rows
    first = right[0]
    content = first["body"] if part == "body" else first["properties"]["UNIQ_KEY"]
    damaged = proxy.inject(damage(content.encode()), "GetObject")
    behind = ["--tier", versitygw.through(proxy.endpoint).url()]
    verified = tieredstore("verify", *behind, "--output", "json")
    assert damaged.hits
    assert verified.code == 1
    assert any("TopicTest" in str(finding) for finding in verified.record["findings"])
    shown = tieredstore("cat", *behind, *cat)
    assert first not in shown.rows
    assert all(row in right for row in shown.rows)
    assert "Traceback" not in shown.err


def tiered_store(root: Path, url: str) -> TieredMessageStore:
    """A tiered store over a broker's local store and the tier at `url`."""
    conf = {
        "brokerName": BROKER,
        "brokerClusterName": CLUSTER,
        "storePathRootDir": str(root / "store"),
        "mappedFileSizeCommitLog": "1048576",
        "tieredStorageLevel": "FORCE",
        "tieredStoreGroupCommitSize": "1",
    }
    config = registry.tier_at(config_from_properties(conf, origin="test").config, url)
    local = DefaultMessageStore(config)
    store = TieredMessageStore(
        local,
        config,
        registry.segment_provider(config),
        DefaultMetadataStore(root / "state" / "tieredStoreMetadata.json", BROKER),
        root / "state",
        SYSTEM_CLOCK,
    )
    store.load()
    local.start()  # uploads happen when they are called
    return store


@pytest.fixture
def broker(
    tmp_path: Path, versitygw: ObjectStore, proxy: FaultProxy
) -> Iterator[TieredMessageStore]:
    store = tiered_store(tmp_path, versitygw.through(proxy.endpoint).url(**IMPATIENT))
    yield store
    proxy.heal()
    store.shutdown()


def put(store: TieredMessageStore, numbers: range) -> None:
    for number in numbers:
        body = f"message {number}".encode()
        assert store.put_message(Message.create("T", body, queue_id=0)).ok
    for _ in range(1000):  # until they are in the consume queue, the source of the upload
        found = store.dispatch_source.queue_range(QueueKey("T", 0))
        if found is not None and found.max_offset == numbers.stop:
            return
        time.sleep(0.01)
    raise AssertionError("not dispatched")


def upload(store: TieredMessageStore) -> list[Any]:
    return [outcome.error for outcome in store.dispatcher.scan(force=True) if outcome.error]


def messages_of(store: TieredMessageStore) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        result = store.get_message("group", "T", 0, offset, 32)
        if result.status is not GetMessageStatus.FOUND:
            return found
        found += [bytes(message.decode_body()) for message in result.messages]
        offset = result.next_begin_offset


@pytest.mark.parametrize(
    "fault", [slow_down(), answer(429, "TooManyRequests"), lose_reply()], ids=["503", "429", "lost"]
)
def test_o02_o12_puts_go_on_while_the_tier_refuses_for_long_and_nothing_is_lost(
    broker: TieredMessageStore, proxy: FaultProxy, versitygw: ObjectStore, fault: Any
) -> None:
    put(broker, range(10))
    assert upload(broker) == []
    proxy.inject(fault)
    for hour in range(1, 4):
        put(broker, range(10 * hour, 10 * hour + 10))
        assert upload(broker)
    proxy.heal()
    expected = [f"message {number}".encode() for number in range(40)]
    for _ in range(5):  # unknown content is compared first
        if not upload(broker):
            break
    assert upload(broker) == []
    assert messages_of(broker) == expected
    assert broker.fetcher.get_message("group", "T", 0, 39, 1).messages
    ran = tieredstore("cat", "--tier", versitygw.url(), "--topic", "T", "--output", "ndjson")
    assert [row["body"].encode() for row in ran.rows] == expected


def test_w02_a_second_broker_takes_over_and_the_first_one_stops(
    broker: TieredMessageStore, versitygw: ObjectStore, tmp_path: Path
) -> None:
    put(broker, range(5))
    assert upload(broker) == []
    config = registry.tier_at(
        config_from_properties({"brokerClusterName": CLUSTER}, origin="test").config,
        versitygw.url(),
    )
    with closing(registry.segment_provider(config)) as other:
        epoch = other.acquire_writer(BROKER, take_over=True)
        put(broker, range(5, 10))
        # What it stores it cannot confirm, so nothing that was counted is lost.
        with pytest.raises(Fenced, match="was taken over"):
            upload(broker)
        epoch.release()
    ran = tieredstore("cat", "--tier", versitygw.url(), "--topic", "T", "--output", "ndjson")
    bodies = [row["body"] for row in ran.rows]
    assert bodies == [f"message {number}" for number in range(len(bodies))]
    assert len(bodies) >= 5


def test_s01_secrets_are_in_no_output_log_error_or_metric(
    source: Path,
    versitygw: ObjectStore,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="tieredstore")
    key = CREDENTIALS[1]
    conf = source.parent / "broker.conf"
    conf.write_text(f"objectStoreAccessKey={CREDENTIALS[0]}\nobjectStoreSecretKey={SECRET}\n")
    url = versitygw.through(proxy.endpoint).url(**IMPATIENT)
    state = source.parent / "state"
    said = []
    for fault in (None, answer(403, "AccessDenied"), answer(500, "InternalError"), lose_reply()):
        if fault is not None:
            proxy.inject(fault)
        for verb in (
            ["offload", source, "--state", state, *NAMES],
            ["ls", *NAMES],
            ["verify", *NAMES],
            ["doctor", *NAMES],
        ):
            ran = tieredstore(verb[0], *verb[1:], "--tier", url, "--config", conf)
            assert ran.code != 0, verb
            said += [ran.out, ran.err]
        proxy.heal()
    said += [str(row) for row in metrics_of_failures(versitygw, conf)]
    in_url = tieredstore("ls", "--tier", f"{url}&secret_key={SECRET}", *NAMES)
    assert in_url.code != 0
    text = "\n".join([*said, in_url.out, in_url.err, caplog.text])
    assert "the secret key does not belong to the access key" in text
    assert SECRET not in text
    assert "Traceback" not in text
    assert f"secret_key={key}" not in text


def metrics_of_failures(store: ObjectStore, conf: Path) -> list[object]:
    """Return the metrics after requests with the wrong credentials in `conf`."""
    config = registry.tier_at(load_broker_conf(conf).config, store.url(**IMPATIENT))
    metrics = Metrics()
    with closing(registry.segment_provider(config)) as provider:
        provider.bind_metrics(metrics)
        with pytest.raises(Invalid) as caught:
            list(provider.list())
    rows: list[object] = [*metrics.snapshot()]
    assert rows
    return [*rows, repr(caught.value), repr(provider), repr(config)]
