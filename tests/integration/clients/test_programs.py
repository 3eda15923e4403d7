"""Each client program is downloaded, built and started, and reports its version."""

from __future__ import annotations

import pytest

from tests.kit.clients.building import java_program
from tests.kit.clients.fixtures import program_or_skip
from tests.kit.clients.program import ClientFailed, Program


def _version(program: Program, *classes: str) -> object:
    with program.start(*classes) as client:
        return client.call("version")


def test_java_over_remoting(java_remoting: Program, java_remoting4: Program) -> None:
    assert _version(java_remoting, "Producers") == "V5_5_0"
    assert _version(java_remoting4, "Producers4") == "V4_9_8"
    assert _version(program_or_skip(java_program("remoting43")), "Producers4") == "V4_3_2"


def test_java_over_grpc(java_grpc: Program) -> None:
    assert "ClientServiceProvider" in str(_version(java_grpc, "Clients"))


def test_node(node_client: Program) -> None:
    assert _version(node_client) == "1.0.8"


def test_go(go_client: Program) -> None:
    assert _version(go_client) == "v5.1.2"


def test_python(python_client: Program) -> None:
    assert _version(python_client) == "5.1.2"


def test_what_a_client_raises_is_told_with_its_type(java_remoting: Program) -> None:
    with java_remoting.start("Producers") as client:
        with pytest.raises(ClientFailed, match="no verb") as raised:
            client.call("nothing")
        assert raised.value.type == "IllegalArgumentException"


def test_a_program_that_dies_says_what_it_wrote(java_remoting: Program) -> None:
    with pytest.raises(AssertionError, match="NoSuchClass"), java_remoting.start("NoSuchClass"):
        pass


def test_a_program_that_cannot_be_built_is_a_skip() -> None:
    with pytest.raises(pytest.skip.Exception, match="not installed: go"):
        program_or_skip("not installed: go")
