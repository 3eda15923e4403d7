"""Ten thousand idle connections must fit into 500 MiB of memory."""

from __future__ import annotations

import os
import resource
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.remoting import decode_commands, encode_command
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand

WARM, COUNT = 100, 2_000
MOST_BYTES_EACH = (500 << 20) // 10_000


def connect(address: str, number: int) -> socket.socket:
    """Return a connection that has sent only a producer's heartbeat."""
    host, port = address.split(":")
    client = socket.create_connection((host, int(port)), 60)
    who = {"clientID": f"c{number}", "producerDataSet": [{"groupName": f"p{number % 50}"}]}
    body = msgspec.json.encode(who | {"consumerDataSet": []})
    client.sendall(encode_command(RemotingCommand(RequestCode.HEART_BEAT, body=body)))
    [answer] = decode_commands(client.recv(1 << 16))
    assert answer.code == ResponseCode.SUCCESS, answer
    return client


def measure_resident(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="memory of a process is read from /proc")
def test_i03_idle_connections_cost_little(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WARM + COUNT + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"a process may open {hard} files, and {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        with BrokerProcess(tmp_path) as broker, ExitStack() as clients:
            address = broker.addresses["remoting"]
            for number in range(WARM):
                clients.enter_context(connect(address, number))
            before = measure_resident(broker.pid)
            for number in range(WARM, WARM + COUNT):
                clients.enter_context(connect(address, number))
            grown = measure_resident(broker.pid) - before
            assert grown <= COUNT * MOST_BYTES_EACH, f"{grown / COUNT:.0f} bytes each"
            with connect(address, 0):  # and others are served
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
