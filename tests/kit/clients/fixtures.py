"""Fixtures of client programs. Tests are skipped with the reason if a program cannot run here. Each
fixture returns a `Program`: `with java_remoting.start("Producers") as client: …`."""

from __future__ import annotations

import pytest

from tests.kit.clients.building import go_program, java_program, node_program, python_program
from tests.kit.clients.program import Program


def program_or_skip(program: Program | str) -> Program:
    """Return the program, or skip the test if it cannot be built."""
    if isinstance(program, str):
        pytest.skip(f"no client: {program}")
    return program


@pytest.fixture(scope="session")
def java_remoting() -> Program:
    """Apache's Java client 5.5.0 for remoting, with rocketmq-tools (mqadmin)."""
    return program_or_skip(java_program("remoting"))


@pytest.fixture(scope="session")
def java_remoting4() -> Program:
    """Apache's Java client 4.9.8 over remoting."""
    return program_or_skip(java_program("remoting4"))


@pytest.fixture(scope="session")
def java_grpc() -> Program:
    """Apache's Java client 5.2.0 over gRPC."""
    return program_or_skip(java_program("grpc"))


@pytest.fixture(scope="session")
def node_client() -> Program:
    """Apache's Node client 1.0.8 over gRPC."""
    return program_or_skip(node_program("clients.js"))


@pytest.fixture(scope="session")
def go_client() -> Program:
    """Apache's Go client 5.1.2 over gRPC."""
    return program_or_skip(go_program())


@pytest.fixture(scope="session")
def python_client() -> Program:
    """Apache's Python client 5.1.2 over gRPC."""
    return program_or_skip(python_program("clients.py"))
