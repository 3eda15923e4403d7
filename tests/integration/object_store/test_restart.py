"""Processes on a real S3 server are killed, or stopped while their tier does not answer. A new
process on the same node continues by itself. A process on another node needs permission."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.command_line import Ran, tieredstore
from tests.kit.fault_proxy.faults import hold
from tests.kit.fault_proxy.proxy import FaultProxy
from tests.kit.local_stores import plain, running, small_config
from tests.kit.object_store.servers import REGION, ObjectStore
from tests.kit.paths import ROOT
from tieredstore.clock import SYSTEM_CLOCK

COUNT = 30
AN_HOUR_MS = "3600000"
NAMES = ("--broker", "b", "--cluster", "c")


def start_machine_again(store: ObjectStore) -> None:
    """Simulate a restart of the machine. The process that owns the newest epoch ran before the
    restart, so it no longer exists."""
    keys = store.keys("tier/")
    epochs = [key for key in keys if key.rpartition("/.writer/")[2].isdigit()]
    client = store.client()
    content = json.loads(client.get_object(Bucket=store.bucket, Key=max(epochs))["Body"].read())
    content["process"] = f"an-earlier-start:1.1:{content['pid']}:1"
    store.put([max(epochs)], json.dumps(content).encode())
    client.close()


def tier_of(store: ObjectStore, **changed: str) -> dict[str, str]:
    """Return the lines of a broker.conf that configure the tier."""
    return {
        "tieredBackendServiceProvider": "s3",
        "objectStoreEndpoint": store.endpoint,
        "objectStoreBucket": store.bucket,
        "tieredStoreS3Prefix": "tier",
        "tieredStoreS3Region": REGION,
        "tieredStoreS3PathStyle": "path",
        **changed,
    }


def test_w06_a_broker_that_was_killed_starts_again_and_another_node_needs_permission(
    versitygw: ObjectStore, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "a", tier_of(versitygw)) as broker:
        broker.kill()
        start_machine_again(versitygw)
        broker.start()
        broker.kill()
        start_machine_again(versitygw)
        other = BrokerProcess(tmp_path / "b", tier_of(versitygw))
        with pytest.raises(AssertionError, match="tieredStoreChunkTakeOverEpoch=2"):
            other.start()
        other.kill()
        try:
            other.start(tieredStoreChunkTakeOverEpoch="2")
            with pytest.raises(AssertionError, match=r"belonging\.md, 'store behind'"):
                broker.start()  # another store has written since
        finally:
            other.kill()


@pytest.mark.slow  # a stop waits 10 s for requests. tests/unit/providers/s3/test_s3_stop.py is fast
def test_a_broker_stops_although_its_tier_does_not_answer(
    versitygw: ObjectStore, tmp_path: Path
) -> None:
    with FaultProxy(versitygw.endpoint) as proxy:
        settings = tier_of(
            versitygw.through(proxy.endpoint),
            tieredStoreS3ReadTimeout=AN_HOUR_MS,
        )
        with BrokerProcess(tmp_path, settings) as broker, hung(proxy):
            assert broker.stop() == 0
            assert "has not stopped in" not in broker.log()
        with BrokerProcess(tmp_path, tier_of(versitygw)) as broker:
            assert broker.stop() == 0


@contextmanager
def hung(proxy: FaultProxy) -> Iterator[None]:
    """Hold all requests until the block ends."""
    go_on = threading.Event()
    proxy.inject(hold(threading.Event(), go_on))
    try:
        yield
    finally:
        go_on.set()
        proxy.heal()


class Offloads:
    """A store with messages. It is offloaded with one of several state directories."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with running(small_config(root / "store"), SYSTEM_CLOCK) as store:
            for number in range(COUNT):
                store.put_message(plain(number=number))
            store.wait_until_dispatched()

    def arguments(self, url: str, state: str = "state") -> list[str]:
        store, directory = str(self.root / "store"), str(self.root / state)
        return ["offload", store, "--tier", url, "--state", directory, *NAMES, "--output", "json"]

    def run(self, url: str, state: str = "state") -> Ran:
        return tieredstore(*self.arguments(url, state))

    @contextmanager
    def following(self, url: str) -> Iterator[subprocess.Popen[str]]:
        """Run `offload --follow` until everything is uploaded."""
        command = [sys.executable, "-m", "tieredstore.cli.main", *self.arguments(url), "--follow"]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stderr is not None
                while f"{COUNT} messages" not in (line := process.stderr.readline()):
                    assert line, "it ended"
                yield process
            finally:
                process.kill()


@pytest.fixture
def offloads(tmp_path: Path) -> Offloads:
    return Offloads(tmp_path)


def test_w06_an_offload_that_was_killed_is_followed_by_one_and_by_no_copy_of_its_state(
    versitygw: ObjectStore, offloads: Offloads
) -> None:
    with offloads.following(versitygw.url()) as process:
        process.kill()
        process.wait()
        start_machine_again(versitygw)
        shutil.copytree(offloads.root / "state", offloads.root / "copy")
        refused = offloads.run(versitygw.url(), "copy")
        assert refused.code == 5
        assert "tieredStoreChunkTakeOverEpoch=1" in refused.err
    ran = offloads.run(versitygw.url())
    assert ran.code == 0, ran.err
    assert tieredstore("verify", "--tier", versitygw.url()).code == 0


@pytest.mark.slow  # as above
def test_an_offload_stops_although_its_tier_does_not_answer(
    versitygw: ObjectStore, offloads: Offloads
) -> None:
    with FaultProxy(versitygw.endpoint) as proxy:
        url = versitygw.through(proxy.endpoint).url(read_timeout_ms=AN_HOUR_MS)
        with offloads.following(url) as process, hung(proxy):
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
            assert "Traceback" not in errors
    start_machine_again(versitygw)
    assert offloads.run(versitygw.url()).code == 0
    assert tieredstore("verify", "--tier", versitygw.url()).code == 0


OWNER = """
import os, sys
from tieredstore import registry
from tieredstore.config import StoreConfig
provider = registry.segment_provider(registry.tier_at(StoreConfig(), sys.argv[1]))
epoch = provider.acquire_writer("broker-a")
if len(sys.argv) > 2:
    os.setresuid(65534, 65534, 65534)
print(epoch.number, flush=True)
sys.stdin.read()
"""
"""A program that acquires the epoch, and then changes to another user. /proc may hide that user's
processes."""

HIDING = (
    "mount -t proc -o hidepid=2 proc /proc && "
    "exec setpriv --bounding-set -sys_ptrace --regid 65534 --clear-groups "
)
"""Shell prefix for a command. It remounts /proc so that other users' processes are hidden, and runs
the command as a root user that can read all files."""


def can_hide() -> bool:
    """Return whether a test can start a process that does not see other users' processes."""
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("setpriv")):
        return False
    script = HIDING + "true"
    return subprocess.run(["unshare", "-m", "sh", "-c", script], check=False).returncode == 0


def test_w09_an_owner_whose_process_is_hidden_is_not_taken_over(versitygw: ObjectStore) -> None:
    if not can_hide():
        pytest.skip("needs root, unshare, setpriv and the right to mount /proc")
    owner = [sys.executable, "-c", OWNER, versitygw.url()]
    with subprocess.Popen(
        [*owner, "as-nobody"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        hidden = ["unshare", "-m", "sh", "-c", HIDING + '"$@"', "sh", *owner]
        ran = subprocess.run(hidden, cwd=ROOT, capture_output=True, input=b"", check=False)
        assert b"Fenced" in ran.stderr, ran.stderr
        process.kill()
        process.wait()
        again = subprocess.run(hidden, cwd=ROOT, capture_output=True, input=b"", check=True)
        assert again.stdout == b"2\n"
