"""Our generated messages and those of RocketMQ's Python client can be used in the same process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.paths import ROOT

OURS = "from tieredstore.broker.grpc import message_types, server"
THEIRS = "import rocketmq"
USE_BOTH = """
from rocketmq.grpc_protocol import definition_pb2
theirs = definition_pb2.Resource(name="topic")
ours = message_types.Resource.FromString(theirs.SerializeToString())
assert ours.name == "topic" and type(ours) is not type(theirs)
"""


def run_python(code: str, home: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=ROOT,
        env={"HOME": str(home), "PYTHONPATH": str(ROOT)},
        timeout=120,
    )


@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)])
def test_the_python_client_imports_in_the_same_process(
    order: tuple[str, str], tmp_path: Path
) -> None:
    run_python("\n".join((*order, USE_BOTH)), tmp_path)


def test_no_folder_appears_in_a_users_home(tmp_path: Path) -> None:
    run_python(OURS, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_descriptors_are_those_of_the_definition() -> None:
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "compile_interface.py", "--check"],
        check=True,
        timeout=120,
    )
